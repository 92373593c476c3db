import string
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from gpusage_slurm.install.slurm_conf import setting, with_list_items, with_setting, without_edits

Step = tuple[Callable[[str, str, str], str], str, str]

keys = st.sampled_from(["JobSubmitPlugins", "TaskProlog", "GresTypes", "AccountingStorageTRES"])
values = st.text(string.ascii_letters + string.digits + "/,_.", min_size=1, max_size=12)
comments = st.one_of(
    st.just(""), st.text(string.printable.replace("\\", ""), max_size=12).map(lambda text: " # " + text)
)
lines = st.one_of(st.text(max_size=20), st.builds("{}={}{}".format, keys, values, comments))
ends = st.sampled_from(["", "\n", "\r\n"])
texts = st.builds(lambda rows, end: "\n".join(rows) + end, st.lists(lines, max_size=6), ends)
settings = st.tuples(st.just(with_setting), st.sampled_from(["TaskProlog", "GresTypes"]), values)
items = st.sampled_from(
    [(with_list_items, "JobSubmitPlugins", "lua"), (with_list_items, "AccountingStorageTRES", "gres/mps")]
)
edits = st.lists(st.one_of(settings, items), max_size=5)


@given(texts, edits)
def test_taking_our_edits_out_gives_the_sites_bytes_back(text: str, steps: list[Step]) -> None:
    text = without_edits(text).replace("\\", "")
    edited = text
    for edit, key, value in steps:
        edited = edit(edited, key, value)
    assert without_edits(edited) == text


@given(texts, keys, values)
def test_a_setting_that_was_written_is_read_back_and_writing_it_twice_changes_nothing(
    text: str, key: str, value: str
) -> None:
    once = with_setting(text.replace("\\", ""), key, value)
    assert setting(once, key) == value
    assert with_setting(once, key, value) == once


@given(texts, keys, values)
def test_an_item_is_added_once_and_the_others_stay(text: str, key: str, value: str) -> None:
    item = value.replace(",", "") or "x"
    before = [word for word in (setting(text.replace("\\", ""), key) or "").split(",") if word]
    after = (setting(with_list_items(text.replace("\\", ""), key, item), key) or "").split(",")
    assert [word for word in after if word in before] == before
    assert item.lower() in {word.lower() for word in after}


def test_what_the_site_added_to_a_line_of_ours_stays_when_ours_goes() -> None:
    text = with_list_items(
        with_list_items("JobSubmitPlugins=throttle\n", "JobSubmitPlugins", "lua"), "CliFilterPlugins", "lua"
    )
    changed = text.replace("throttle,lua ", "throttle,lua,mine ").replace(
        "CliFilterPlugins=lua", "CliFilterPlugins=lua,x"
    )
    assert without_edits(changed) == "JobSubmitPlugins=throttle,mine\nCliFilterPlugins=x\n"
