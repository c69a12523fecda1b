"""Tasks by name: one of the built-in ones, or a user's own as ``module:Class``."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

from pydantic import BaseModel, ValidationError

from orchestrator.config.names import name_remedy, nearest_names
from orchestrator.config.pydantic_refusals import refusals_of
from orchestrator.errors import ConfigError, OrchestratorError, TaskError
from orchestrator.training.task import Task

# Module and class of each, looked up by name only: tasks are built on training, not the other way round.
BUILT_IN = {
    "digits": "orchestrator.tasks.digits:Digits",
    "bytes": "orchestrator.tasks.bytes:Bytes",
    "table": "orchestrator.tasks.table:Table",
    "quadratic": "orchestrator.tasks.quadratic:Quadratic",
    "regression": "orchestrator.tasks.regression:Regression",
}
_MEMBERS = ("model", "train_data", "val_data", "loss", "evaluate", "metric_modes", "fingerprint")


def load_task(name: str, options: dict[str, Any]) -> Task:
    """Import and build a task.

    Args:
        name: a built-in task, or ``module:Class`` of an importable module. The class may be any with `Task`'s members.
        options: for its typed config.

    Raises:
        TaskError: if the name, the import, the class or its constructor is at fault; the cause is in the message.
        ConfigError: for an option that the task's config refuses, with key ``task.<option>``.
    """
    cls = task_class(name)
    config = _config(cls, options)
    try:
        task: Task = cls(config)
    except OrchestratorError:
        raise
    except (Exception, SystemExit) as error:
        raise TaskError(
            f"its constructor raised {describe(error)}",
            key="task.name",
            value=name,
            remedy="mend the task or its options",
        ) from error
    return task


def module_of(name: str) -> str:
    """The module that holds a task, from its name."""
    return BUILT_IN.get(name, name).partition(":")[0]


def task_class(name: str) -> Any:
    """The class of a task, by name, without building it. Raises TaskError as `load_task`."""
    module_name, colon, class_name = BUILT_IN.get(name, name).partition(":")
    if not colon or not module_name or not class_name:
        found = nearest_names(name, BUILT_IN)
        near = f"did you mean {found[0]}?" if found else f"write module:Class, or one of {', '.join(BUILT_IN)}"
        raise TaskError("there is no built-in task of this name", key="task.name", value=name, remedy=near)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise TaskError(
            f"importing {module_name} raised {describe(error)}",
            key="task.name",
            value=name,
            remedy="start from the folder that holds the module, or install it"
            if isinstance(error, ModuleNotFoundError) and module_name.startswith(error.name or "?")
            else "mend the module",
        ) from error
    cls = getattr(module, class_name, None)
    if not isinstance(cls, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, Task)]
        found = nearest_names(class_name, classes)
        near = f"did you mean {module_name}:{found[0]}?" if found else f"define {class_name} in {module_name}"
        raise TaskError(f"{module_name} has no class {class_name}", key="task.name", value=name, remedy=near)
    abstract = getattr(cls, "__abstractmethods__", ())
    missing = [member for member in _MEMBERS if not hasattr(cls, member) or member in abstract]
    if missing:
        remedy = "define them" if issubclass(cls, Task) else "derive it from orchestrator.training.task.Task"
        raise TaskError(f"a task needs the members {', '.join(missing)}", key="task.name", value=name, remedy=remedy)
    return cls


def _config(cls: Any, options: dict[str, Any]) -> BaseModel:
    model = config_of(cls)
    for key, value in options.items():
        if key not in model.model_fields and model.model_config.get("extra") == "forbid":
            remedy = name_remedy(key, model.model_fields, what="option")
            raise ConfigError("the task has no such option", key=f"task.{key}", value=value, remedy=remedy)
    try:
        return model(**options)
    except ValidationError as error:
        first = refusals_of(error, model, options)[0].under("task")
        remedy = first.remedy or f"see {model.__module__}.{model.__qualname__}"
        raise ConfigError(one_line(first.rule), key=first.key, value=first.value, remedy=remedy) from error
    except Exception as error:
        raise TaskError(
            f"its Config raised {describe(error)}", key="task.name", value=cls.__name__, remedy="mend its validators"
        ) from error


def config_of(cls: Any) -> type[BaseModel]:
    """The pydantic model of a task class's options.

    Raises:
        TaskError: it is something else.
    """
    model = getattr(cls, "Config", Task.Config)
    if isinstance(model, type) and issubclass(model, BaseModel):
        return model
    raise TaskError(
        "Config must be a pydantic model", key="task.name", value=cls.__name__, remedy="derive it from TaskConfig"
    )


def describe(error: BaseException) -> str:
    """An error of the user's own code on one line, whatever its text does."""
    try:
        text = one_line(str(error))
    except Exception:  # noqa: BLE001  it is the user's __str__
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def one_line(text: str) -> str:
    """The first lines of `text` that say something, as one line, without the stack that torch prints below them."""
    lines = [line.strip() for line in text.strip().splitlines()]
    lines = list(itertools.takewhile(lambda line: "most recent call first" not in line, lines))
    joined = " ".join(filter(None, lines))
    return joined if len(joined) <= _LONGEST else f"{joined[:_LONGEST]}..."


_LONGEST = 300
