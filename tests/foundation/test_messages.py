"""Everything a user reads exists in Chinese."""

import importlib.util

from npulift import messages


def tool(root):
    spec = importlib.util.spec_from_file_location("messages_tool", root / "tools" / "messages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_message_lacks_its_translation(root):
    assert tool(root).missing() == []


def test_a_translation_is_used_when_chinese_is_asked_for():
    messages.set_language("zh_CN")
    assert messages._("fix") == "修复"


def test_english_is_the_source():
    messages.set_language("en")
    assert messages._("fix") == "fix"
