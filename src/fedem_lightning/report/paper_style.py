"""Figures for a printed page: one and two columns wide, 8 points, without a title."""

import io
import pickle
import warnings

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedem_lightning.report.drawing import STYLE, Drawn

_WIDTHS = {"3.25in": 3.25, "6.75in": 6.75}
"""Inches of one column and of a whole page, by the end of the file's name."""
_POINTS = 8
_LETTERS_AN_INCH = 14
"""Letters of a legend in an inch at 8 points; a line and spaces are as long as six."""
_LEAST = 0.75
"""Share of its height that a narrow figure keeps, so that the y-axis has room for its label."""


def paper_files(drawn: Drawn) -> dict[str, bytes]:
    """The figure as PDF files with TrueType fonts, by the end of their names: 3.25in.pdf and 6.75in.pdf.

    They have no title, because a document says it in its caption.
    """
    files = {}
    for end, width in _WIDTHS.items():
        figure = pickle.loads(pickle.dumps(drawn.figure))  # a copy of what this process has just drawn
        target = io.BytesIO()
        with mpl.rc_context(STYLE), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            _fit(figure, width)
            figure.savefig(target, format="pdf", metadata={"CreationDate": None})
        files[f"{end}.pdf"] = target.getvalue()
    return files


def _fit(figure: Figure, width: float) -> None:
    """Gives a figure its width in inches, 8 points, a legend that fits, and no title."""
    title = figure.get_suptitle()
    figure.suptitle("")
    old_width, height = figure.get_size_inches()
    panel = height - (0.3 if title else 0)
    legends, lines = list(figure.legends), 0
    for old in legends:  # another number of columns needs another legend
        names = [text.get_text() for text in old.get_texts()]
        panel -= 0.19 * sum(name.count("\n") + 1 for name in names)
        widest = max(len(line) for name in names for line in name.splitlines())
        columns = max(1, min(len(names), int(width * _LETTERS_AN_INCH / (widest + 6))))
        lines += sum(name.count("\n") + 1 for name in names) // columns + 1
        handles = [handle for handle in old.legend_handles if handle is not None]
        old.remove()
        figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize=_POINTS)
    for text in figure.findobj(Text):
        text.set_fontsize(_POINTS)
    figure.set_size_inches(width, panel * min(1.15, max(_LEAST, width / old_width)) + 0.16 * lines)
    figure.set_layout_engine("constrained")
