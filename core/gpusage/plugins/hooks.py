"""The hooks, typed: one method for each hook of `gpusage_hooks.specs`, by which core asks plugins.

Invariants:

1. Where the first answer wins, a plugin that breaks the contract is a `PluginError` with its name: nobody else's answer
   takes the place of one that its site wants.
2. Where all answers count, such a plugin's answer is left out, with a warning.
3. gpusage's own plugins are called as they are: tests check their answers, and their faults are our own bugs.
4. Whatever anyone else's plugin raises but a `GpuUsageError` becomes a `PluginError` that names plugin and hook.
5. What it prints goes to standard error: a command's own output is read by others.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Concatenate, ParamSpec, TextIO, TypeVar

from gpusage_hooks import specs
from gpusage_hooks.answers import check_answer
from gpusage_hooks.errors import GpuUsageError, PluginError
from gpusage_hooks.types import DecisionRecord, Gpu, Submitter, Usage

P = ParamSpec("P")
T = TypeVar("T")
NOBODY = Submitter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A plugin as it was loaded, or set aside.

    Attributes:
        name: Of its entry point; of the module where it is built in.
        package: The distribution that it comes with; empty where that is not known.
        version: The distribution's.
        hooks: Those that it implements, sorted; none where it is set aside.
        trouble: Why it is set aside, as one sentence; ``None`` where it is not.
    """

    name: str
    package: str = ""
    version: str = ""
    hooks: tuple[str, ...] = ()
    trouble: str | None = None


def output_aside() -> contextlib.redirect_stdout[TextIO]:
    """Return the context in which the output of others' code goes to standard error."""
    return contextlib.redirect_stdout(sys.stderr)


def is_interrupt(error: BaseException) -> bool:
    """Return whether *error* is the user's Ctrl-C, which only the main thread gets."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """One plugin's function for one hook.

    Attributes:
        plugin: The plugin's name.
        arguments: Those of the hook's arguments that the function takes, in its own order.
        is_ours: It comes with gpusage.
    """

    plugin: str
    hook: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    is_ours: bool

    def call(self, question: Mapping[str, object]) -> Any:  # whatever the hook answers
        """Return the answer to *question*, the hook's arguments by name.

        Raises:
            GpuUsageError: As the hook says.
            PluginError: The plugin fails in another way, or breaks the contract.
        """
        arguments = [question[name] for name in self.arguments]
        if self.is_ours:
            return self.function(*arguments)

        # A plugin of others may end with any error, even SystemExit: none of them may end gpusaged.
        try:
            with output_aside():
                answer = self.function(*arguments)
        except GpuUsageError:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            rule = f"raise nothing but a GpuUsageError; it raised {describe_error(error)}"
            raise self._fault(rule) from error

        # Checking its answer runs code of its own, too: a property.
        try:
            check_answer(self.hook, question, answer)
        except AssertionError as error:
            rule = f"answer as the contract says: {str(error).removesuffix('.')}"
            raise self._fault(rule) from error
        except BaseException as error:
            if is_interrupt(error):
                raise
            rule = f"answer as the contract says; checking its answer raised {describe_error(error)}"
            raise self._fault(rule) from error
        return answer

    def _fault(self, rule: str) -> PluginError:
        message = f"Plugin {self.plugin!r}, hook {self.hook!r}, must {rule}. Update or uninstall it."
        return PluginError(message, plugin=self.plugin, hook=self.hook)


def sentence(error: BaseException) -> str:
    """Return *error* as a sentence: our errors have their own, any other as `describe_error` has it."""
    return _words(error) if isinstance(error, GpuUsageError) else describe_error(error)


def describe_error(error: BaseException) -> str:
    """Return the kind of *error*, its words, and where it was raised, on a line."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    words = " ".join(_words(error).split())
    return f"{type(error).__name__}{f': {words}' if words else ''} ({PurePath(where.filename).name}:{where.lineno})"


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a plugin's own kind of error may say nothing at all
        return ""


def _first_answer(hook: Callable[P, T | None]) -> Callable[Concatenate[Hooks, P], T | None]:
    """Return the method that asks plugins for *hook* until one of them answers."""
    words = hook.__code__.co_varnames

    def ask(self: Hooks, /, *arguments: P.args, **named: P.kwargs) -> T | None:
        question = {**dict(zip(words, arguments, strict=False)), **named}
        try:
            for implementation in self.implementations.get(hook.__name__, ()):
                answer: T | None = implementation.call(question)
                if answer is not None:
                    return answer
        except PluginError as error:
            # Nobody else is asked: the site wants this plugin's answer, and gpusaged then leaves the job as it is.
            self.faults[error.plugin] = str(error)
            raise
        return None

    ask.__doc__ = hook.__doc__
    return ask


def _all_answers(hook: Callable[P, T | None]) -> Callable[Concatenate[Hooks, P], list[T]]:
    """Return the method that collects the answer of each plugin that has one to *hook*."""
    words = hook.__code__.co_varnames

    def ask(self: Hooks, /, *arguments: P.args, **named: P.kwargs) -> list[T]:
        question = {**dict(zip(words, arguments, strict=False)), **named}
        return self.collect_answers(self.implementations.get(hook.__name__, ()), question)

    ask.__doc__ = hook.__doc__
    return ask


class Hooks:
    """Asks plugins, a site's own before gpusage's.

    Each hook is a method with the signature and the meaning that `gpusage_hooks.specs` gives it.

    Args:
        plugins: All that there are, those that are set aside included.
        implementations: By hook, in the order in which they are asked.
    """

    def __init__(self, plugins: Sequence[Plugin], implementations: Mapping[str, Sequence[Implementation]]) -> None:
        self.plugins = tuple(plugins)
        self.implementations = implementations
        self.faults: dict[str, str] = {}

    read_model = _first_answer(specs.read_model)
    find_observed_figures = _all_answers(specs.find_observed_figures)
    predict_needs = _first_answer(specs.predict_needs)
    predict_slowdown = _first_answer(specs.predict_slowdown)
    predict_colocation = _first_answer(specs.predict_colocation)
    decide = _first_answer(specs.decide)
    describe_manager = _all_answers(specs.describe_manager)
    parse_submission = _first_answer(specs.parse_submission)
    render_decision = _first_answer(specs.render_decision)
    observe_cluster = _first_answer(specs.observe_cluster)
    read_cluster = _first_answer(specs.read_cluster)
    read_past_jobs = _first_answer(specs.read_past_jobs)
    collect_past_jobs = _first_answer(specs.collect_past_jobs)
    find_jobs = _first_answer(specs.find_jobs)
    find_shared_jobs = _first_answer(specs.find_shared_jobs)
    restore_request = _first_answer(specs.restore_request)
    find_out_of_memory_jobs = _first_answer(specs.find_out_of_memory_jobs)
    requeue_on_whole_gpu = _first_answer(specs.requeue_on_whole_gpu)
    collect_usage = _first_answer(specs.collect_usage)
    read_accounting = _first_answer(specs.read_accounting)
    read_gpu = _first_answer(specs.read_gpu)
    _describe_model_names = _all_answers(specs.describe_model_names)
    _describe_gpus = _all_answers(specs.describe_gpus)
    _add_commands = _all_answers(specs.add_commands)

    def troubles(self) -> dict[str, str]:
        """Return the faults of plugins, by name: why a plugin is set aside, or its last fault here."""
        aside = {plugin.name: plugin.trouble for plugin in self.plugins if plugin.trouble}
        return {**self.faults, **aside}

    def are_ours(self, *hooks: str) -> bool:
        """Return whether nobody but gpusage itself implements *hooks*."""
        for hook in hooks:
            for implementation in self.implementations.get(hook, ()):
                if not implementation.is_ours:
                    return False
        return True

    def describe_model_names(self) -> list[str]:
        """Return how the models are named that plugins read."""
        return [name for answer in self._describe_model_names() for name in answer]

    def describe_gpus(self) -> list[Gpu]:
        """Return GPUs for the catalogue, a site's own last: a later row replaces one of the same name."""
        return [gpu for answer in reversed(self._describe_gpus()) for gpu in answer]

    def add_commands(self) -> list[object]:
        """Return the click commands of all plugins."""
        return [command for answer in self._add_commands() for command in answer]

    def commands_of(self, plugin: str) -> Sequence[object]:
        """Return the click commands of *plugin* alone, so that nobody waits for other plugins."""
        implementations = self.implementations.get("add_commands", ())
        own = [implementation for implementation in implementations if implementation.plugin == plugin]
        answers: list[Sequence[object]] = self.collect_answers(own, {})
        return [command for answer in answers for command in answer]

    def decision_made(self, record: DecisionRecord) -> None:
        """Let plugins hear of a decision."""
        _: list[object] = self.collect_answers(self.implementations.get("decision_made", ()), {"record": record})

    def usage_observed(self, usage: Usage) -> None:
        """Let plugins hear of the usage of a job."""
        _: list[object] = self.collect_answers(self.implementations.get("usage_observed", ()), {"usage": usage})

    def collect_answers(self, implementations: Iterable[Implementation], question: Mapping[str, object]) -> list[T]:
        """Return the answer of each of *implementations* that has one; a plugin at fault is left out."""
        answers: list[T] = []
        for implementation in implementations:
            try:
                answer: T | None = implementation.call(question)
            except PluginError as error:
                # Warn once: a hook may be called for every job.
                if self.faults.get(error.plugin) != str(error):
                    warn(str(error))
                self.faults[error.plugin] = str(error)
                continue

            if answer is not None:
                answers.append(answer)
        return answers


def warn(sentence: str) -> None:
    """Tell people of trouble with a plugin on standard error, which is gpusaged's log, too."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # there may be none, or a closed one
        sys.stderr.write(f"gpusage: warning: {sentence}\n")
