"""A model's tokenizer without torch or transformers: tokenizer.json, read by ``tokenizers``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from experiments.parts.padding import padding_of
from experiments.records import ExperimentError, FailureKind

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def load_tokenizer(folder: Path) -> Tokenizer:
    """The fast tokenizer of the model in ``folder``: no truncation, right padding to the longest of a batch.

    Padding follows :func:`experiments.parts.padding.padding_of`, so models without a padding token work too;
    ``tokenizer.padding["pad_id"]`` is the token and ``tokenizer.no_padding()`` turns it off.

    Raises:
        ExperimentError: ``bad_model`` if there is no readable tokenizer.json.
    """
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"{folder.name} has no tokenizer.json",
            fix="Save the tokenizer beside the model: AutoTokenizer.from_pretrained(...).save_pretrained(folder).",
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception for every fault of the file
        raise ExperimentError(
            FailureKind.BAD_MODEL,
            f"tokenizer.json of {folder.name} can't be read: {str(error)[:200]}",
            fix="Save the tokenizer again with a tokenizers release of today.",
        ) from error
    tokenizer.no_truncation()
    padding = padding_of(folder, tokenizer.get_vocab(with_added_tokens=True))
    tokenizer.enable_padding(direction="right", pad_id=padding.id, pad_token=padding.token)
    return tokenizer
