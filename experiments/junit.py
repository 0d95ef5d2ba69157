"""A study's outcome as JUnit XML, which CI systems show as test results."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from experiments.records import Report, StudyReport


def junit_xml(report: StudyReport) -> bytes:
    """One ``testcase`` per experiment: passed if it gave a result; the failure's kind, sentence and log otherwise."""
    failed = sum(e.status == "failed" for e in report.experiments)
    skipped = sum(e.status == "cancelled" for e in report.experiments)
    seconds = sum(sum(e.stage_seconds.values()) for e in report.experiments)
    suite = Element(
        "testsuite",
        name=_xml(report.name),
        tests=str(len(report.experiments)),
        failures=str(failed),
        errors="0",
        skipped=str(skipped),
        time=f"{seconds:.3f}",
    )
    for experiment in report.experiments:
        _case(suite, report.name, experiment)
    root = Element("testsuites", suite.attrib)
    root.append(suite)
    indent(root)
    return bytes(tostring(root, encoding="utf-8", xml_declaration=True))


def _case(suite: Element, study: str, report: Report) -> None:
    seconds = sum(report.stage_seconds.values())
    case = SubElement(suite, "testcase", classname=_xml(study), name=_xml(report.experiment), time=f"{seconds:.3f}")
    if report.status == "cancelled":
        SubElement(case, "skipped", message="cancelled")
    elif report.failure is not None:
        failure = report.failure
        element = SubElement(case, "failure", type=failure.kind.value, message=_xml(failure.message))
        element.text = _xml("\n".join(filter(None, (failure.message, failure.fix, *failure.log_tail))))


def _xml(text: str) -> str:
    """``text`` without the characters that XML 1.0 can't hold, not even escaped."""
    return "".join(
        c if c in "\t\n\r" or 0x20 <= ord(c) < 0xD800 or 0xE000 <= ord(c) < 0xFFFE or ord(c) > 0xFFFF else "?"
        for c in text
    )
