"""Checks the built site: `python docs/check_site.py site`; exit code 1 and a line for each fault.

A fault is a link, an image or an anchor that leads nowhere on the site, or a line of code of more than 88 columns.
Links to other hosts are not followed; the source of the package, whose lines are longer, stands under source/.
"""

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

COLUMNS = 88
GENERATED = ("source/", "404.html")  # the source code, and a page whose links begin at the root of a host
SIGNATURE = "doc-signature"  # of a class in the API, which the page wraps


class PageParser(HTMLParser):
    """Collects what a page links to, the anchors that it has, and its code."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.code: list[str] = []
        self.open: list[str] = []  # the classes of the open `div` and `pre`

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes links and anchors, and where code begins."""
        given = dict(attrs)
        self.links += [value for name in ("href", "src") if (value := given.get(name))]
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag in ("div", "pre"):
            self.open.append(f"{tag} {given.get('class') or ''}")
            if tag == "pre":
                self.code.append("")

    def handle_endtag(self, tag: str) -> None:
        """Closes a `div` or a `pre`."""
        if tag in ("div", "pre") and self.open:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        """Appends to the open code."""
        if self.open and self.open[-1].startswith("pre") and not any(SIGNATURE in part for part in self.open):
            self.code[-1] += data


def parsed(path: Path) -> PageParser:
    """A page of the site."""
    page = PageParser()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def faults(site: Path) -> Iterator[str]:
    """What is wrong on the site, a line for each."""
    pages = {path.resolve(): parsed(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site.resolve()).as_posix()
        if name.startswith(GENERATED):
            continue
        for link in dict.fromkeys(page.links):
            if (fault := broken(link, path, pages)) is not None:
                yield f"{name}: {link}: {fault}"
        for line in "\n".join(page.code).splitlines():
            if len(line) > COLUMNS:
                yield f"{name}: {len(line)} columns of code: {line.strip()}"


def broken(link: str, path: Path, pages: dict[Path, PageParser]) -> str | None:
    """Why a page's link leads nowhere on the site, or None."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors | {"top"}:
        return "no such anchor"
    return None


if __name__ == "__main__":
    found = list(faults(Path(sys.argv[1])))
    print("\n".join(found) if found else "no broken link, image or anchor, no code line over 88 columns")
    sys.exit(bool(found))
