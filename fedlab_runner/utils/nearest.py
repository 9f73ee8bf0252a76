"""What a misspelt word may mean."""

import difflib
from collections.abc import Collection


def nearest(word: str, words: Collection[str]) -> str | None:
    """The word nearest to `word`, whatever the case of their letters; None where none is near."""
    by_small_letters = {each.casefold(): each for each in words}
    found = difflib.get_close_matches(word.casefold(), by_small_letters, n=1, cutoff=0.6)
    return by_small_letters[found[0]] if found else None
