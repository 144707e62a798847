"""Makes the site of what lies in docs/ and at the repository's root, so that the same Markdown serves both.

README.md, CONTRIBUTING.md and CHANGELOG.md become pages, README.md the first one. Files outside docs/ that a page
links to are copied to the site. Links are rewritten to where their targets lie on the site. The pages of methods are
completed by `method_pages`, those of the API and of the source come from `api_pages`.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

import api_pages
import method_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
NOTEBOOKS = {f"examples/{name}.ipynb": f"{name}.ipynb" for name in ("quickstart", "own_data")}  # links in docs/
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|[#/])[^)#\s]+|(?<=<img src=\")(?![a-z]+:|[#/])[^\"]+")  # a relative path


def source_of(page: str) -> str:
    """Where a page of the site lies in the repository."""
    return next((source for source, name in PAGES.items() if name == page), f"docs/{page}")


def target_of(page: str, link: str) -> str:
    """Where a link of a page leads to on the site."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source_of(page)), link))
    return (PAGES | NOTEBOOKS).get(target, target.removeprefix("docs/"))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fills in the navigation, and the repository's address if there is one."""
    config.repo_url = api_pages.repository()
    nav: list[dict[str, Any]] = config.nav
    of_methods = next(section["Methods"] for section in nav if "Methods" in section)
    families = [{family: [f"methods/{n}.md" for n in names]} for family, names in method_pages.families().items()]
    of_methods[1:1] = families
    reference = next(section["Reference"] for section in nav if "Reference" in section)
    reference.append({"API": ["api/index.md", *(f"api/{name}.md" for name in api_texts())]})
    return config


def api_texts() -> dict[str, str]:
    """The pages of the API, without the methods' classes."""
    return api_pages.pages({f"fedem_lightning.{method_pages.class_of(name)}" for name in method_pages.methods()})


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages at the root, the generated ones, and what pages link to outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    texts = {f"api/{name}.md": text for name, text in api_texts().items()}
    texts |= {f"methods/{name}.md": method_pages.new_page(name) for name in method_pages.methods()}
    for page, text in texts.items():
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, content=text))
    for page, text in api_pages.source_pages().items():
        files.append(File.generated(config, page, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    for page in files.documentation_pages():
        if not page.src_uri.startswith("source/"):
            for target in {target_of(page.src_uri, link) for link in LINK.findall(page.content_string)}:
                if files.get_file_from_path(target) is None and (ROOT / target).is_file():
                    files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
    return files  # the build names a link to what is not there, and fails


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Completes a method's page, and rewrites the links of a page."""
    here = page.file.src_uri
    if here.startswith("source/"):
        return markdown
    folder, name = posixpath.dirname(here) or ".", Path(here).stem
    if here == "methods/index.md":
        markdown = method_pages.with_others(markdown)
    elif folder == "methods" and name in method_pages.methods():
        markdown = method_pages.completed(name, markdown)
    return LINK.sub(lambda link: posixpath.relpath(target_of(here, link[0]), folder), markdown)
