"""Which of Hadoop's classes are archived."""

from __future__ import annotations

from gpusage_sandboxes.yarn.hadoop import class_names


def test_only_classes_that_can_be_found_again_are_archived() -> None:
    text = (
        "# a comment\njava/lang/Object id: 0\n@lambda-proxy java/lang/String run\norg/A\n"
        "org/B source: file:/b.jar id: 7 super: 0\n"
    )
    assert list(class_names(text)) == ["java/lang/Object", "org/A"]
