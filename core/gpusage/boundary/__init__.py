"""The edge of the process: typed documents, printable text, atomic files, edits of an admin's files.

Decisions: docs/decisions/service.md
"""
