"""What the speculation benchmark has models continue: work that repeats what is there already, and text that does not."""

from dataclasses import dataclass

_ARTICLE = """The old lighthouse at Cape Wren was built in 1864 by the engineer Thomas Halloran. It stands 41 metres tall and its \
lamp could be seen from 19 miles away. In 1932 the lamp was changed from oil to electricity, and in 1987 the last keeper, \
Maria Santos, left the tower. Today it is a museum that is open from April to October. Tickets cost four pounds, and children \
under twelve enter free. The garden behind the tower has forty kinds of roses, planted by the families of the keepers. In the \
winter of 1911 the steamer Adelaide ran onto the rocks below it, and all of her crew were brought ashore in the lighthouse \
boat. The bell of the ship still hangs beside the door."""

_CODE = '''def load_settings(path):
    """Read settings from a file."""
    settings = {}
    with open(path) as source:
        for line in source:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            name, _, value = line.partition("=")
            settings[name.strip()] = value.strip()
    return settings


def save_settings(path, settings):
    """Write settings to a file."""
    with open(path, "w") as target:
        for name in sorted(settings):
            target.write(f"{name} = {settings[name]}\\n")


def merge_settings(first, second):
    """The second one wins."""
    merged = dict(first)
    merged.update(second)
    return merged
'''

_EDITED = _CODE.replace("settings", "options")

_PEOPLE = (
    ("Anna Lindqvist", "Lisbon", 1983),
    ("Boris Keller", "Porto", 1991),
    ("Clara Moreau", "Braga", 1975),
    ("David Okafor", "Faro", 2001),
    ("Elsa Brandt", "Evora", 1969),
    ("Filip Novak", "Aveiro", 1988),
    ("Greta Hansen", "Coimbra", 1994),
    ("Hugo Santos", "Setubal", 1979),
)
_LINES = "\n".join(f"{name} lives in {city} and was born in {year}." for name, city, year in _PEOPLE)
_ENTRIES = "\n".join(f'{{"name": "{name}", "city": "{city}", "born": {year}}}' for name, city, year in _PEOPLE[:2])


@dataclass(frozen=True)
class Text:
    """`prompt` is continued as it is, without a chat template; `temperature` 0 is greedy."""

    name: str
    prompt: str
    temperature: float
    repeats: bool  # what is there already


TEXTS = (
    Text("code edit", f"# settings.py\n{_CODE}\n\n# options.py, the same with other names\n{_EDITED[:330]}", 0.0, True),
    Text("extraction", f"{_LINES}\n\nThe same as JSON:\n{_ENTRIES}\n", 0.0, True),
    Text("quoting", f"{_ARTICLE}\n\nThe article again, word for word:\n\n{_ARTICLE[:160]}", 0.0, True),
    Text("quoting, drawn", f"{_ARTICLE}\n\nThe article again, word for word:\n\n{_ARTICLE[:160]}", 0.8, True),
    Text("story", "Once upon a time a fisherman found a strange map in the belly of a cod. It showed", 0.8, False),
    Text("essay", "The history of bread begins long before the first ovens. People", 0.8, False),
    Text(
        "letter",
        "Dear Ruth,\n\nMy first week in the city is over, and there is so much to tell you. The flat",
        0.8,
        False,
    ),
    Text(
        "greedy story", "Once upon a time a fisherman found a strange map in the belly of a cod. It showed", 0.0, False
    ),
)
