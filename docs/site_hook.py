"""Folds docs/ into the repository's root, so that the same Markdown serves the repository's page and the site.

README.md, CONTRIBUTING.md and CHANGELOG.md become pages, README.md the first one. Files outside docs/ that a page
links to are copied to the site. Links lose `docs/` (of a page at the root) or `../` (of a page in docs/).
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
OUTSIDE = re.compile(r"\]\(\.\./([^)#\s]+)")  # the target of a link from docs/ to the rest of the repository
INSIDE = re.compile(r"\]\(docs/")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages at the root, and what pages link to outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    texts = [Path(str(file.abs_src_path)).read_text() for file in files.documentation_pages()]
    known = {*PAGES, *(file.src_uri for file in files)}
    for target in {target for text in texts for target in OUTSIDE.findall(text)} - known:
        if (ROOT / target).is_file():  # else the build names the page and the link
            files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the links of a page."""
    markdown = INSIDE.sub("](", markdown) if page.file.src_uri in PAGES.values() else OUTSIDE.sub(r"](\1", markdown)
    return markdown.replace("](README.md", "](index.md")
