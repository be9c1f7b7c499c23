"""Every signature: its example matches, its near miss does not, its text is there in both languages, and no log can make it slow."""

import re
import string

import pytest

from npulift import messages
from npulift.doctor.analyses.error_codes import table as code_table
from npulift.doctor.diagnose import diagnose_text
from npulift.doctor.signatures import literals_of, signatures

ALL = signatures()


def test_there_are_at_least_120_with_different_ids():
    assert len({s.id for s in ALL}) == len(ALL) >= 120


@pytest.mark.parametrize("signature", ALL, ids=lambda s: s.id)
def test_the_example_matches_and_the_near_miss_does_not(signature):
    assert signature.match(signature.example)
    assert not signature.match(signature.near_miss)


@pytest.mark.parametrize("signature", ALL, ids=lambda s: s.id)
def test_the_text_is_whole_in_both_languages(signature):
    assert signature.cause_en
    assert re.search(r"[\u4e00-\u9fff]", signature.cause_zh)
    assert len(signature.fix_en) == len(signature.fix_zh) >= 1
    assert all(signature.fix_en)
    assert all(signature.fix_zh)
    assert bool(signature.more_en) == bool(signature.more_zh)
    assert signature.source
    for also in signature.also:
        assert bool(also.say) == bool(also.say_zh)


@pytest.mark.parametrize("signature", ALL, ids=lambda s: s.id)
def test_placeholders_are_groups_of_its_expressions(signature):
    groups = {g for p in [*signature.patterns, *(p for a in signature.also for p in a.patterns)] for g in p.groupindex}
    texts = [signature.cause_en, signature.cause_zh, *(a.say for a in signature.also), *(a.say_zh for a in signature.also)]
    used = {m for t in texts for m in re.findall(r"\{([a-z_]+)\}", t)}
    assert used <= groups


@pytest.mark.parametrize("signature", ALL, ids=lambda s: s.id)
def test_each_expression_needs_a_literal_and_repeats_nothing_without_bound(signature):
    for pattern in [*signature.patterns, *(p for a in signature.also for p in a.patterns)]:
        literals = literals_of(pattern.pattern)
        assert all(len(literal) >= 4 for literal in literals)
        bare = re.sub(r"\\.", "", re.sub(r"\[(?:\\.|[^\]])*\]", "C", pattern.pattern))
        assert "*" not in bare, "an unbounded repetition"
        assert "+" not in bare, "an unbounded repetition"
        nested = re.findall(r"\((?:\?:|\?P<\w+>)?([^()]*[}?])\)[{*+]", pattern.pattern)
        assert all(inner.startswith("\\.") for inner in nested), "a repetition of a repetition whose rounds do not begin with a dot"


def test_the_literals_are_in_every_match_of_the_examples():
    for signature in ALL:
        assert any(literal in signature.example for p in signature.patterns for literal in literals_of(p.pattern))


@pytest.mark.parametrize(("pattern", "literals"), [
    (r"EI0006.{0,120}Getting socket", ("Getting socket",)),
    (r"error code is 507015", ("error code is 507015",)),
    (r"(?P<lib>libhccl)\.so: cannot open", (".so: cannot open",)),
    (r"abcd|ef\[gh", ("abcd", "ef[gh")),
    (r"[|a]wxyz|stuv", ("wxyz", "stuv")),
    (r"abcde?fghij", ("fghij",)),
])
def test_literals_of(pattern, literals):
    assert literals_of(pattern) == literals


def test_an_expression_without_a_literal_is_refused():
    with pytest.raises(ValueError, match="no literal"):
        literals_of(r"\w+ \d+")


def test_links_name_what_exists():
    known = {s.id for s in ALL}
    from_analyses = {
        "late-rank", "uneven-iterations", "rank-without-timeout", "hccl-port-taken", "port-over-65535", "oom-held-elsewhere", "oom-fragmentation", "oom-too-large",
        "oom-absurd-request", "cann-not-sourced", "ascend-driver-missing", "op-compiler-not-on-path", "op-compiler-packages", "chip-lacks-bfloat16", "operator-dtype",
        "qnn-skel-path", "loss-scale-spiral", "loss-scale-settled", "nonfinite-training", "python-traceback-other-rank",
    }
    assert {a for s in ALL for a in s.after} <= known | from_analyses


@pytest.mark.parametrize("signature", [s for s in ALL if not s.wrapper], ids=lambda s: s.id)
def test_the_example_alone_gives_a_cause(signature):
    assert diagnose_text(signature.example).causes


def test_chinese_causes_in_chinese():
    messages.set_language("zh")
    cause = diagnose_text("RuntimeError: NPU function error: x, error code is 507018").causes[0]
    assert re.search(r"[\u4e00-\u9fff]", cause.cause)
    assert not [f for f in string.Formatter().parse(cause.cause) if f[1]]


def test_codes_have_a_meaning_in_both_languages():
    assert all(meaning and re.search(r"[\u4e00-\u9fff]", zh) for _name, meaning, zh in code_table().values())
    assert code_table()[507046][0] == "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT"
    assert code_table()[6][0] == "HCCL_E_NOT_FOUND"
