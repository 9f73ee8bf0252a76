"""Hooks of the site's build: README.md is the home page, and links out of docs/ become plain text.

A site that is read offline has no repository beside it, so a link to a source file would lead nowhere.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Write the pages of folders into the navigation."""
    config.nav = expanded(config.nav, ROOT / "docs")
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the home page."""
    from mkdocs.structure.files import File  # of the extra `docs`; the tests of this module do without

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=home(text)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the links that leave docs/ by their texts."""
    return within_docs(markdown, page.file.src_uri)


def expanded(nav: list[Any], docs: Path) -> list[Any]:
    """The navigation with `name/` replaced by `name.md` and the pages of the folder `name`, in alphabetical order."""

    def pages(target: Any) -> Any:
        if isinstance(target, list):
            return expanded(target, docs)
        if not target.endswith("/"):
            return target
        found = [docs / f"{target[:-1]}.md", *sorted((docs / target).glob("*.md"))]
        return [path.relative_to(docs).as_posix() for path in found if path.is_file()]

    return [
        {title: pages(each) for title, each in entry.items()} if isinstance(entry, dict) else entry for entry in nav
    ]


def home(readme: str) -> str:
    """README.md as docs/index.md: links lose their `docs/`, and links to other files of the repository go."""

    def link(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        if target.startswith(("http", "#")):
            return match[0]
        return f"{mark}[{text}]({target.removeprefix('docs/')})" if target.startswith("docs/") else text

    return _LINK.sub(link, readme)


def within_docs(markdown: str, page: str) -> str:
    """The text of a page, by its path below docs/, without links to files outside of docs/."""

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), match[3]))
        return f"`{match[2]}`" if not match[3].startswith("http") and target.startswith("..") else match[0]

    return _LINK.sub(link, markdown)
