"""A few SVG shapes, enough for the figures. Knows nothing of the engine."""

from html import escape

FONT = "ui-sans-serif, system-ui, sans-serif"
INK, FAINT = "#1f2933", "#8795a1"


class Picture:
    """Shapes on a white sheet; `text` gives the file."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._shapes: list[str] = []
        self._width = self._height = 0

    def box(
        self, x: int, y: int, width: int, height: int, fill: str, label: str = "", *, ink: str = INK, edge: str = INK
    ) -> None:
        self._reach(x + width, y + height)
        self._shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" stroke="{edge}" stroke-width="0.6"/>'
        )
        if label:
            self.write(x + width // 2, y + height // 2 + 4, label, anchor="middle", ink=ink)

    def write(
        self, x: int, y: int, text: str, *, anchor: str = "start", ink: str = INK, size: int = 12, bold: bool = False
    ) -> None:
        reach = {"start": 1.0, "middle": 0.5, "end": 0.0}[anchor]
        self._reach(x + int(reach * 0.56 * size * len(text)), y + 4)
        weight = ' font-weight="600"' if bold else ""
        self._shapes.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{ink}" font-size="{size}"{weight}>{escape(text)}</text>'
        )

    def line(
        self, x1: int, y1: int, x2: int, y2: int, *, ink: str = INK, width: float = 1.4, arrow: bool = False
    ) -> None:
        self._reach(max(x1, x2), max(y1, y2))
        end = ' marker-end="url(#arrow)"' if arrow else ""
        self._shapes.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{ink}" stroke-width="{width}"{end}/>'
        )

    def text(self) -> str:
        width, height = self._width + 16, self._height + 16
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="{FONT}" role="img">\n<title>{escape(self._title)}</title>\n'
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>\n'
            f'<rect width="{width}" height="{height}" fill="white"/>\n'
        )
        return head + "\n".join(self._shapes) + "\n</svg>\n"

    def _reach(self, x: int, y: int) -> None:
        self._width, self._height = max(self._width, x), max(self._height, y)
