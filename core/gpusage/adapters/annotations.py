"""The annotation that a workload manager keeps with each job: written by a decision, read back later."""

from __future__ import annotations

from gpusage.store.annotation import AnnotationCode, JobAnnotation, parse_annotation, with_annotation

__all__ = [
    "AnnotationCode",
    "JobAnnotation",
    "parse_annotation",
    "with_annotation",
]
