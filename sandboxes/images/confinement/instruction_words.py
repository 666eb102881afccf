"""Split an instruction of a Dockerfile into its flags and words, as the engine does."""

from collections.abc import Sequence

BLANKS = " \t\v\f\r\n"


def split(text: str, escape: str) -> tuple[list[str], list[str]]:
    """Split an instruction into its leading flags and its other words, without quotes and escapes."""
    words: list[str] = []
    word, quote, begun, skip = "", "", False, False
    for sign in text:
        if skip:
            word, skip = word + sign, False
        elif sign == escape and quote != "'":
            begun = skip = True
        elif quote:
            quote, word = ("", word) if sign == quote else (quote, word + sign)
        elif sign in "\"'":
            quote, begun = sign, True
        elif sign in BLANKS:
            if begun:
                words.append(word)
            word, begun = "", False
        else:
            word, begun = word + sign, True
    if begun:
        words.append(word)
    count = next((at for at, each in enumerate(words) if not each.startswith("--")), len(words))
    return words[:count], words[count:]


def values(flags: Sequence[str], name: str) -> list[str]:
    """Return the values of a flag, which may occur several times."""
    return [value for flag in flags for key, _, value in [flag.partition("=")] if key.strip().lower() == name]
