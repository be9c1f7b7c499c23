"""Translation of what a user reads: `_` and `ngettext`, English as the source, gettext catalogues for other languages.

Each room (a folder or a file directly under npulift/) has its own catalogue, locale/<language>/LC_MESSAGES/<room>.po, so that
rooms grow side by side; at run time they are read as one. JSON keys and codes are never translated.
Use `N_` to mark a text where it is written and `_` where it is shown.
"""

from __future__ import annotations

import gettext as _gettext
import locale
import os
from pathlib import Path

LANGUAGES = ("en", "zh")
_FOLDERS = {"zh": "zh_CN"}
_LOCALE = Path(__file__).parent / "locale"
_active: _gettext.NullTranslations = _gettext.NullTranslations()
_language = "en"


def language_from_environment() -> str:
    """'zh' if LANGUAGE, LC_ALL, LC_MESSAGES or LANG (the first that is set) asks for Chinese, else 'en'."""
    for variable in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"):
        value = os.environ.get(variable)
        if value:
            return "zh" if value.lower().startswith("zh") else "en"
    preferred = (locale.getlocale()[0] or "").lower()
    return "zh" if preferred.startswith(("zh", "chinese")) else "en"


def set_language(language: str) -> None:
    """Choose the language of every later message. Raises ValueError for a language without a catalogue."""
    global _active, _language
    language = language.lower().replace("-", "_").split("_")[0]
    if language not in LANGUAGES:
        raise ValueError(f"no catalogue for language {language!r}; there are {', '.join(LANGUAGES)}")
    _language = language
    _active = _gettext.NullTranslations()
    folder = _LOCALE / _FOLDERS.get(language, language) / "LC_MESSAGES"
    for catalogue in sorted(folder.glob("*.mo")):
        with catalogue.open("rb") as file:
            room = _gettext.GNUTranslations(file)
        room.add_fallback(_active)
        _active = room


def current_language() -> str:
    """The active language, 'en' or 'zh'."""
    return _language


def _(message: str) -> str:
    """The message in the active language."""
    return _active.gettext(message) if message else ""


def ngettext(singular: str, plural: str, n: int) -> str:
    """The form of the message that fits the number n, in the active language."""
    return _active.ngettext(singular, plural, n)


def N_(message: str) -> str:
    """Marks a message for extraction and returns it unchanged; translate it with `_` where it is shown."""
    return message
