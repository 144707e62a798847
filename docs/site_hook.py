"""Folds docs/ into the repository's root, so that the same Markdown serves the repository's page and the site.

README.md, CONTRIBUTING.md and CHANGELOG.md become pages, README.md the first one. Files outside docs/ that a page
links to are copied to the site. Links are rewritten to where their targets lie on the site.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|[#/])[^)#\s]+")  # the path of a relative link


def source_of(page: str) -> str:
    """Where a page of the site lies in the repository."""
    return next((source for source, name in PAGES.items() if name == page), f"docs/{page}")


def target_of(page: str, link: str) -> str:
    """Where a link of a page leads to on the site."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source_of(page)), link))
    return PAGES.get(target, target.removeprefix("docs/"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages at the root, and what pages link to outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for page in files.documentation_pages():
        text = Path(str(page.abs_src_path)).read_text()
        for target in {target_of(page.src_uri, link) for link in LINK.findall(text)}:
            if files.get_file_from_path(target) is None and (ROOT / target).is_file():
                files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
    return files  # the build names a link to what is not there, and fails


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the links of a page."""
    here = page.file.src_uri
    folder = posixpath.dirname(here) or "."
    return LINK.sub(lambda link: posixpath.relpath(target_of(here, link[0]), folder), markdown)
