"""Hooks of the documentation site (mkdocs.yml): pages that are no files of docs/ come in here.

README.md is the first page, CHANGELOG.md a page, the reference is generated, and links to files of
the repository that are no pages become their names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from griffe import ModuleFinder
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pymdownx.slugs import slugify

from tests.docs.reference_pages import reference_pages

ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]\[]+)\]\((?!\w+:|#)([^)#\s]+)((?:#[^)\s]+)?)\)")
LIST_WITHOUT_BLANK = re.compile(r"^((?!- |\d+\. |[ |#]).+\n)(?=(?:- |\d+\. )\S)", re.MULTILINE)

OF_THE_ROOT = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
"""Files of the root that are pages, and their names in the site."""

WITHOUT_PUBLIC_NAMES = {"cmdlog", "foreign", "spark", "testing"}
"""Packages of the library that define no name of ``import fastjournal``: two thirds of it."""


def on_startup(**_: object) -> None:
    """Have mkdocstrings load the other packages only; it would import and inspect them all."""
    find_submodules = ModuleFinder.submodules

    def submodules(finder: ModuleFinder, module: Any) -> list[tuple[tuple[str, ...], Path]]:
        found = find_submodules(finder, module)
        return [one for one in found if one[0][0] not in WITHOUT_PUBLIC_NAMES]

    # mkdocstrings has no option for it
    ModuleFinder.submodules = submodules


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Have the anchors of headings that the links of docs/ name."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and the reference."""
    texts = {page: (ROOT / name).read_text(encoding="utf-8") for name, page in OF_THE_ROOT.items()}
    pages = {page: with_links_from(text, ROOT) for page, text in texts.items()}
    pages |= reference_pages()
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page as Python-Markdown needs it: a blank line is in front of each list."""
    if page.file.generated_by is None:
        folder = Path(page.file.abs_src_path).parent
        markdown = with_links_from(markdown, folder, Path(page.file.src_uri).parent)
    parts = FENCED.split(markdown)
    parts[::2] = [LIST_WITHOUT_BLANK.sub(r"\1\n", part) for part in parts[::2]]
    return "".join(parts)


def with_links_from(text: str, folder: Path, place: Path = Path()) -> str:
    """Return a page with links as the site needs them.

    Args:
        text: Page in Markdown.
        folder: Directory that its links start from.
        place: Folder of the page in the site.
    """
    docs = ROOT / "docs"

    def link(found: re.Match[str]) -> str:
        label, path, anchor = found.groups()
        target = (folder / path).resolve()
        if target.is_relative_to(docs) or not target.exists():
            up = "../" * len(place.parts)
            inside = target.relative_to(docs) if target.is_relative_to(docs) else None
            return f"[{label}]({up}{inside}{anchor})" if inside else found[0]
        if target.parent == ROOT and target.name in OF_THE_ROOT:
            return f"[{label}]({'../' * len(place.parts)}{OF_THE_ROOT[target.name]}{anchor})"
        return f"`{target.relative_to(ROOT)}`"

    parts = FENCED.split(text)
    parts[::2] = [LINK.sub(link, part) for part in parts[::2]]
    return "".join(parts)
