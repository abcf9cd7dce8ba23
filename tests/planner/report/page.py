"""A report's page as a reader has it."""

import json
import re
from html.parser import HTMLParser

VOID = {"meta", "br"}
INLINE = {"b", "i", "em", "span", "button"}


class Page(HTMLParser):
    """The elements of a page, its text without scripts and styles, and its JSON."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.figures: dict[str, dict] = {}
        self._json = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.links += [value for name, value in attributes if name in ("src", "href", "action", "data", "srcset")]
        if "id" in named:
            self.ids.append(named["id"])
        self._json = named.get("id", "") if named.get("type") == "application/json" else ""
        if tag not in VOID:
            self.open.append(tag)
            if tag not in INLINE:
                self.words.append(" ")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag not in INLINE:
            self.words.append(" ")

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            if self._json:
                self.figures[self._json.removeprefix("json-")] = json.loads(data)
        elif self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words).replace("\u00a0", " "))


def undefined_colours(html: str) -> set[str]:
    """Return the colours that a page names and its style sheet lacks, in the light theme or the dark one."""
    style = re.search(r"<style>(.*?)</style>", html, flags=re.DOTALL).group(1)
    light, dark = style.split("prefers-color-scheme: dark", maxsplit=1)
    used = set(re.findall(r"var\((--[\w-]+)\)", re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)))
    return {name for name in used if f"{name}:" not in light or f"{name}:" not in dark}
