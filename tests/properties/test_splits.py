from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpusage_lab.learning import splits

groups = st.lists(st.sampled_from(["resnet", "vit", "swin", "vgg", "bert"]), min_size=1, max_size=60)


@given(groups, st.integers(1, 6))
def test_no_family_is_on_both_sides_and_every_row_is_tested_once(names: list[str], fold_count: int) -> None:
    folds = splits.by_group(names, fold_count, "family")
    for fold in folds:
        assert not {names[i] for i in fold.train} & {names[i] for i in fold.test}
        assert sorted([*fold.train, *fold.test]) == list(range(len(names)))
    assert sorted(np.concatenate([fold.test for fold in folds])) == list(range(len(names)))


@given(groups, st.integers(1, 6))
def test_the_order_of_the_rows_does_not_move_a_family(names: list[str], fold_count: int) -> None:
    shuffled = sorted(names)

    def tested(rows: list[str]) -> set[frozenset[str]]:
        return {frozenset(rows[i] for i in fold.test) for fold in splits.by_group(rows, fold_count, "family")}

    assert tested(names) == tested(shuffled)


@given(groups)
def test_leaving_one_out_tests_each_group_alone(names: list[str]) -> None:
    folds = splits.leave_one_out(names, "GPU")
    assert [{names[i] for i in fold.test} for fold in folds] == [{name} for name in sorted(set(names))]
    assert all(not set(fold.train) & set(fold.test) for fold in folds)


@given(st.integers(1, 50), st.integers(1, 5))
def test_a_random_split_tests_every_row_once_and_says_what_it_is(row_count: int, fold_count: int) -> None:
    folds = splits.random_rows(row_count, fold_count)
    assert sorted(np.concatenate([fold.test for fold in folds])) == list(range(row_count))
    assert all(fold.name.startswith("random rows") for fold in folds)
