"""Colours and markers of figures, which colour-blind readers can tell apart."""

PALETTE = ("#d55e00", "#0072b2", "#7f7f7f", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255")
"""Okabe and Ito's colours (Color Universal Design, 2008), without black and yellow; grey; and a wine red of Tol's."""

MARKERS = "os^Dv<>P"
"""Markers of Matplotlib; with the colours they repeat after the eighth."""
