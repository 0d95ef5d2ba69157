"""Files of rows: what people really have, read as it is or refused by line and column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.datasets.path import PathDataset
from experiments.parts.parquet_rows import preview
from experiments.protocols import Examples, Host, Task
from experiments.records import ExperimentError, FailureKind


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(cache=tmp_path / "cache")


def load(host: Host, path: Path, task: Task = "text-classification", **options: Any) -> Examples:
    return PathDataset(path=str(path), **options).load(host, task)


def refusal(host: Host, path: Path, task: Task = "text-classification", **options: Any) -> ExperimentError:
    with pytest.raises(ExperimentError) as caught:
        load(host, path, task, **options)
    assert caught.value.failure.kind is FailureKind.BAD_DATASET
    assert caught.value.failure.fix
    return caught.value


# --- CSV


def test_words_that_look_like_missing_values_stay_words(tmp_path: Path, host: Host) -> None:
    """FC-007."""
    file = tmp_path / "words.csv"
    file.write_text("text,label\nnull,pos\nNA,neg\nNone,pos\nnan,neg\nok,None\n")
    rows = load(host, file)
    assert rows.texts == ("null", "NA", "None", "nan", "ok")
    assert rows.labels == ("pos", "neg", "pos", "neg", "None")


def test_only_empty_cells_are_missing_and_they_are_counted(tmp_path: Path, host: Host) -> None:
    """FC-007."""
    file = tmp_path / "gaps.csv"
    file.write_text('text,label\na,pos\n"",neg\nb,\nc,neg\n')
    rows = load(host, file)
    assert rows.texts == ("a", "c")
    assert any("2 rows with an empty cell left out, first line 3" in note for note in rows.notes)


def test_a_lone_quote_is_named_by_its_line(tmp_path: Path, host: Host) -> None:
    """FC-011, file 1."""
    file = tmp_path / "stray.csv"
    lines = ["text,label", "fine,pos", '"lone start,neg', *(f"row {i},pos" for i in range(4_998))]
    file.write_text("\n".join(lines) + "\n")
    message = str(refusal(host, file))
    assert "line 3" in message and "never closed" in message


def test_a_lone_quote_that_a_later_quote_closes_is_named_by_its_line(tmp_path: Path, host: Host) -> None:
    """FC-011: other rows with good quotes must not hide where the fault is."""
    file = tmp_path / "stray.csv"
    file.write_text('text,label\nfine,pos\n"lone start,neg\nfine,pos\n"good, quoted",neg\n')
    assert "line 3" in str(refusal(host, file))


def test_a_long_quoted_field_is_one_field(tmp_path: Path, host: Host) -> None:
    """FC-011, file 2."""
    long = ('He said ""so;\n' * 20_000)[:200_000]
    long = long.rstrip('"')
    file = tmp_path / "long.csv"
    file.write_text(f'text,label\n"{long}",pos\nshort,neg\n')
    rows = load(host, file)
    assert rows.texts == (long.replace('""', '"'), "short")
    assert len(rows.texts[0]) > 131_072


def test_the_delimiter_and_decimal_commas_are_guessed_and_said(tmp_path: Path, host: Host) -> None:
    """FC-011, file 3."""
    file = tmp_path / "german.csv"
    file.write_text("text;score\nder erste, kurze Satz;1,5\nzweiter;-0,25\ndritter;1.234,5\n")
    rows = load(host, file, "feature-extraction")
    assert rows.scores == (1.5, -0.25, 1234.5)
    assert rows.texts[0] == "der erste, kurze Satz"
    assert any("semicolon-separated (guessed)" in note for note in rows.notes)
    assert any("decimal commas" in note for note in rows.notes)


def test_numbers_written_in_two_ways_are_refused(tmp_path: Path, host: Host) -> None:
    file = tmp_path / "mixed.csv"
    file.write_text("text;score\na;1,5\nb;1.5\n")
    assert "line 3, column 'score'" in str(refusal(host, file, "feature-extraction"))


def test_quotes_inside_unquoted_fields_are_characters(tmp_path: Path, host: Host) -> None:
    file = tmp_path / "inch.csv"
    file.write_text('text,label\na 5" disk,pos\nhe said "hi" twice,neg\n')
    assert load(host, file).texts == ('a 5" disk', 'he said "hi" twice')


def test_a_row_with_another_number_of_fields_is_named_by_its_line(tmp_path: Path, host: Host) -> None:
    file = tmp_path / "wide.csv"
    file.write_text("text,label\na,pos\nb, with a comma,neg\n")
    assert "line 3: 3 fields, but the header has 2" in str(refusal(host, file))


def test_text_that_is_not_utf8_is_named_by_its_line(tmp_path: Path, host: Host) -> None:
    file = tmp_path / "latin.csv"
    file.write_bytes("text,label\nfine,pos\ncafé,neg\n".encode("latin-1"))
    assert "line 3 is not UTF-8" in str(refusal(host, file))


def test_a_byte_order_mark_is_not_part_of_the_first_column(tmp_path: Path, host: Host) -> None:
    file = tmp_path / "excel.csv"
    file.write_bytes("text,label\r\né,pos\r\nb,neg\r\n".encode("utf-8-sig"))
    assert load(host, file).texts == ("é", "b")
    file.write_bytes("text,label\r\né,pos\r\nb,neg\r\n".encode("utf-16"))
    assert load(host, file).texts == ("é", "b")


@pytest.mark.parametrize("content", ["", "\n\n", "text,label\n", "text,label\n,\n"])
def test_a_file_without_rows_is_refused(tmp_path: Path, host: Host, content: str) -> None:
    file = tmp_path / "empty.csv"
    file.write_text(content)
    message = str(refusal(host, file))
    assert "no rows" in message or "empty" in message


# --- columns


def test_the_nearest_column_is_offered(tmp_path: Path, host: Host) -> None:
    file = tmp_path / "data.csv"
    file.write_text("review,sentimentt\na,pos\nb,neg\n")
    error = refusal(host, file, columns={"text": "review", "label": "sentiment"})
    assert "no column 'sentiment'; did you mean 'sentimentt'?" in str(error)
    assert error.failure.field == "dataset.columns.label"


def test_a_missing_label_column_is_said_with_the_nearest(tmp_path: Path, host: Host) -> None:
    file = tmp_path / "data.csv"
    file.write_text("text,lable\na,pos\n")
    error = refusal(host, file)
    assert "label" in str(error) and "the nearest is 'lable'" in str(error)
    assert error.failure.field == "dataset.columns.label"


def test_guessed_columns_are_said(tmp_path: Path, host: Host) -> None:
    file = tmp_path / "nli.csv"
    file.write_text("premise,hypothesis,label\na,b,0\nc,d,1\n")
    rows = load(host, file)
    assert rows.pairs == ("b", "d")
    assert any("text = 'premise', label = 'label', pair = 'hypothesis'" in note for note in rows.notes)


# --- JSONL


def test_a_list_among_strings_is_named_by_line_and_column(tmp_path: Path, host: Host) -> None:
    """FC-009."""
    file = tmp_path / "mixed.jsonl"
    file.write_text('{"text":"a","label":1}\n{"text":"b","label":"1"}\n\n{"text":["c"],"label":0}\n')
    assert "line 4, column 'text': list, expected string" in str(refusal(host, file))


def test_one_and_the_word_one_are_one_class_and_it_is_said(tmp_path: Path, host: Host) -> None:
    """FC-009."""
    file = tmp_path / "mixed.jsonl"
    file.write_text('{"text":"a","label":1}\n{"text":"b","label":"1"}\n\n{"text":"c","label":0}\n')
    rows = load(host, file)
    assert rows.labels == ("1", "1", "0")
    assert any("1 and '1' are one class" in note for note in rows.notes)


@pytest.mark.parametrize("line", ["{broken", "[1, 2]", '"text"'])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, host: Host, line: str) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text('{"text":"a","label":"x"}\n' + line + "\n")
    assert "line 2" in str(refusal(host, file))


def test_a_json_array_of_objects_is_read_too(tmp_path: Path, host: Host) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([{"text": "a", "label": "x"}, {"text": "b", "label": None}]))
    assert load(host, file).texts == ("a",)


# --- Parquet


def test_nested_neighbours_do_not_matter(tmp_path: Path, host: Host) -> None:
    """FC-073."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    nested = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.string())])))])
    table = pa.table(
        {
            "text": pa.array(["x", "y", "z", "w"]),
            "label": pa.array(["p", "n", "p", "n"]).dictionary_encode(),
            "meta": pa.array([{"a": 1, "b": [{"c": "d"}]}] * 4, nested),
            "tags": pa.array([[("k", 1)]] * 4, pa.map_(pa.string(), pa.int64())),
            "long": pa.array(["l"] * 4, pa.large_string()),
        }
    )
    file = tmp_path / "nested.parquet"
    pq.write_table(table, file, row_group_size=2)
    rows = load(host, file)
    assert rows.texts == ("x", "y", "z", "w") and rows.labels == ("p", "n", "p", "n")
    assert load(host, file, columns={"text": "long"}).texts == ("l",) * 4
    columns, shown = preview(file)
    assert columns == ("text", "label", "meta", "tags", "long")
    assert json.loads(shown[0][2]) == {"a": 1, "b": [{"c": "d"}]}
    assert "meta" in str(refusal(host, file, columns={"text": "meta"}))


def test_parquet_without_rows_is_refused(tmp_path: Path, host: Host) -> None:
    """FC-073."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / "none.parquet"
    pq.write_table(pa.table({"text": pa.array([], pa.string()), "label": pa.array([], pa.string())}), file)
    assert "no rows" in str(refusal(host, file))


def test_cut_off_parquet_is_refused(tmp_path: Path, host: Host) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / "cut.parquet"
    pq.write_table(pa.table({"text": ["a"], "label": ["b"]}), file)
    file.write_bytes(file.read_bytes()[:-20])
    assert "not a whole Parquet file" in str(refusal(host, file))


def test_class_numbers_get_the_names_that_the_file_carries(tmp_path: Path, host: Host) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    features = {"info": {"features": {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}}}
    table = pa.table({"text": ["a", "b"], "label": [1, 0]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(features)}), tmp_path / "named.parquet")
    assert load(host, tmp_path / "named.parquet").labels == ("pos", "neg")


def test_images_are_read_from_nested_lists(tmp_path: Path, host: Host) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    image = [[0, 255], [128, 1]]
    pq.write_table(pa.table({"image": [image, image], "label": ["a", "b"]}), tmp_path / "pixels.parquet")
    rows = load(host, tmp_path / "pixels.parquet", "image-classification")
    assert rows.images is not None and rows.images.shape == (2, 2, 2) and rows.images.dtype.name == "uint8"


# --- limits, splits, hashes


def test_a_limit_draws_rows_of_all_classes_and_the_same_ones_each_time(tmp_path: Path, host: Host) -> None:
    file = tmp_path / "sorted.csv"
    file.write_text("text,label\n" + "".join(f"row {i},{'pos' if i < 500 else 'neg'}\n" for i in range(1_000)))
    first, second = load(host, file, limit=100), load(host, file, limit=100)
    assert first == second and len(first) == 100 and first.total == 1_000
    assert 30 < (first.labels or ()).count("neg") < 70
    numbers = [int(text.split()[1]) for text in first.texts]
    assert numbers == sorted(numbers)
    assert any("100 of 1,000 rows drawn with seed 0" in note for note in first.notes)


def test_equal_rows_have_equal_hashes_wherever_they_come_from(tmp_path: Path, host: Host) -> None:
    (tmp_path / "a.csv").write_text("text,label\nx,1\ny,0\n")
    (tmp_path / "b.jsonl").write_text('{"label":1,"text":"x"}\n{"label":0,"text":"y"}\n')
    (tmp_path / "c.csv").write_text("text,label\nx,1\ny,1\n")
    a, b, c = (load(host, tmp_path / name).sha256 for name in ("a.csv", "b.jsonl", "c.csv"))
    assert a == b != c


def test_a_folder_has_a_file_for_each_split(tmp_path: Path, host: Host) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.csv").write_text("text,label\na,x\nb,y\n")
    (folder / "dev.csv").write_text("text,label\nc,x\n")
    data = PathDataset(path=str(folder), split="train")
    assert data.load(host, "text-classification").texts == ("a", "b")
    assert data.load(host, "text-classification", split="validation").texts == ("c",)
    with pytest.raises(ExperimentError, match=r"no split 'test'; .*train"):
        data.load(host, "text-classification", split="test")


def test_one_file_is_one_split_unless_a_column_says_otherwise(tmp_path: Path, host: Host) -> None:
    plain = tmp_path / "plain.csv"
    plain.write_text("text,label\na,x\n")
    with pytest.raises(ExperimentError, match="one file, so it holds one split"):
        PathDataset(path=str(plain)).load(host, "text-classification", split="train")
    divided = tmp_path / "divided.csv"
    divided.write_text("text,label,split\na,x,train\nb,y,test\nc,x,train\n")
    data = PathDataset(path=str(divided))
    assert data.load(host, "text-classification").texts == ("b",)
    assert data.load(host, "text-classification", split="train").texts == ("a", "c")


# --- where a path may point


def test_paths_outside_the_roots_are_refused(tmp_path: Path) -> None:
    inside, outside = tmp_path / "roots", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    for folder in (inside, outside):
        (folder / "data.csv").write_text("text,label\na,x\n")
    (inside / "link.csv").symlink_to(outside / "data.csv")
    (inside / "folder").mkdir()
    (inside / "folder" / "test.csv").symlink_to(outside / "data.csv")
    host = Host(cache=tmp_path / "cache", path_roots=(inside,))
    assert load(host, inside / "data.csv").texts == ("a",)
    assert load(host, Path("data.csv")).texts == ("a",)
    for given in ("../outside/data.csv", str(outside / "data.csv"), "link.csv", "../outside/absent.csv", "/etc/passwd"):
        assert "outside the folders" in str(refusal(host, Path(given)))
    assert "link that leads out" in str(refusal(host, inside / "folder"))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("absent.csv", "nothing at"),
        ("data.xlsx", "can't be read"),
        ("x" * 300 + ".csv", "can't be reached"),
        ("data.xlsx/below.csv", "nothing at"),
        ("a\0b.csv", "NUL"),
        ("/dev/zero", "not a file or folder that can be read"),
    ],
)
def test_what_is_not_there_or_not_readable_is_said(tmp_path: Path, host: Host, given: str, why: str) -> None:
    (tmp_path / "data.xlsx").write_bytes(b"PK")
    assert why in str(refusal(host, tmp_path / given))
