"""Reads a YAML file plus command-line overrides into configuration dataclasses, strictly.

TRL's ``TrlParser`` does the work; this module closes the gaps through which a misspelt or misplaced setting
would be dropped without a word: unknown keys, duplicate YAML keys, values of the wrong type, abbreviated
options, the hidden ``<script>.args`` file and the ``env:`` block. Every such case raises :class:`ConfigError`
with the name of the key and, for unknown keys, the closest known one. Used by ``gravity_rl.train`` and
``gravity_rl.evaluate``.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from trl import TrlParser


class ConfigError(ValueError):
    """A setting is unknown, malformed, contradictory or would have no effect."""


class _UniqueKeyLoader(yaml.SafeLoader):
    """Safe YAML loader that refuses a mapping with the same key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue  # a list or mapping, which the base class refuses
            key, line = key_node.value, key_node.start_mark.line + 1
            if key in seen:
                raise ConfigError(f"{self.name}: key {key!r} is set twice, on lines {seen[key]} and {line}")
            seen[key] = line
        return super().construct_mapping(node, deep=deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: the file is missing, is not YAML, is not a mapping, or repeats a key.
    """
    try:
        with path.open(encoding="utf-8") as stream:
            values = yaml.load(stream, Loader=_UniqueKeyLoader)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except ConfigError:
        raise
    except RecursionError as error:
        raise ConfigError(f"{path} is not valid YAML: it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not valid UTF-8: {error}") from error
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:  # the latter: a wrong !!type or date
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of settings, not {type(values).__name__}")
    return values


class StrictParser(TrlParser):
    """``TrlParser`` in which every setting that is not understood is an error.

    Args:
        dataclass_types: configuration dataclasses; their fields become YAML keys and ``--options``.
        description: first line of ``--help``.
        is_hidden: settings that ``--help`` leaves out.
    """

    def __init__(
        self,
        dataclass_types: Iterable[type],
        description: str,
        is_hidden: Callable[[str], bool] = lambda _: False,
    ):
        super().__init__(
            list(dataclass_types),
            usage="%(prog)s [--config FILE] [--SETTING VALUE ...]",
            description=description,
            allow_abbrev=False,
        )
        for action in self._actions:
            if is_hidden(action.dest):
                action.help = argparse.SUPPRESS
        self.add_argument("--config", default=argparse.SUPPRESS, help="YAML file with any of the settings below.")

    def error(self, message: str) -> NoReturn:
        """Called by argparse for a malformed option; argparse itself would print 300 lines of usage and
        exit."""
        raise ConfigError(message)

    def parse(self, argv: Sequence[str]) -> tuple[Any, ...]:
        """Instances of the dataclasses: defaults, overridden by ``--config FILE``, overridden by other
        options.

        Raises:
            ConfigError: see the module docstring; also when a dataclass refuses its values.
        """
        argv, path = self._split_config(list(argv))
        if path is not None:
            values = read_yaml(path)
            self.set_defaults_with_config(**self._checked(path, values))
        remaining = self.parse_known_args(argv)[1]
        if remaining:
            raise ConfigError(self._unknown(remaining))
        try:
            return self.parse_args_into_dataclasses(args=argv, look_for_args_file=False)
        except ConfigError:
            raise
        except (ValueError, TypeError) as error:  # raised by a dataclass about its own values
            raise ConfigError(str(error)) from error

    def _split_config(self, argv: list[str]) -> tuple[list[str], Path | None]:
        finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        finder.error = self.error  # type: ignore[method-assign]
        finder.add_argument("--config", action="append", default=[])
        found, rest = finder.parse_known_args(argv)
        if len(found.config) > 1:
            raise ConfigError(f"--config is given {len(found.config)} times; one file holds a run's settings")
        return rest, Path(found.config[0]) if found.config else None

    def _known(self) -> dict[str, argparse.Action]:
        """Setting name → the action that parses it."""
        known: dict[str, argparse.Action] = {}
        for action in self._actions:
            if action.dest not in ("help", "config"):
                known.setdefault(action.dest, action)  # the first is --x, a later one --no_x
        return known

    def _suggest(self, name: str) -> str:
        close = difflib.get_close_matches(name, self._known(), n=1, cutoff=0.6)
        return f"; did you mean {close[0]!r}?" if close else ""

    def _unknown(self, remaining: list[str]) -> str:
        option = next((text for text in remaining if text.startswith("--")), None)
        if option is None:
            return f"unexpected command-line argument {remaining[0]!r}: options are written --name value"
        name = option[2:].split("=", 1)[0].replace("-", "_")
        return f"unknown command-line option --{name}{self._suggest(name)}"

    def _checked(self, path: Path, values: dict[str, Any]) -> dict[str, Any]:
        """The YAML values in the form in which argparse converts and checks defaults."""
        known = self._known()
        checked: dict[str, Any] = {}
        for name, value in values.items():
            if name == "env":
                raise ConfigError(
                    f"{path}: an `env:` block is not accepted: set environment variables in the shell that "
                    "launches the run"
                )
            if name not in known:
                raise ConfigError(f"{path}: unknown setting {name!r}{self._suggest(str(name))}")
            try:
                checked[name] = _as_default(known[name], value)
            except (ValueError, TypeError, argparse.ArgumentTypeError) as error:
                raise ConfigError(f"{path}: {name}: {error}") from error
        return checked


def _as_default(action: argparse.Action, value: Any) -> Any:
    """A YAML value as a default of its option: text where argparse shall convert it as on the command line.

    Raises:
        ValueError, TypeError, ArgumentTypeError: the value is of the wrong kind.
    """
    kind = getattr(action.type, "__name__", "text")
    if value is None or isinstance(value, str):
        return value
    if action.nargs == "+":
        if not isinstance(value, list) or any(isinstance(item, list | dict) for item in value):
            raise ValueError(f"expected a list of {kind} values, got {value!r}")
        return [action.type(str(item)) if callable(action.type) else item for item in value]
    if isinstance(value, list | dict):
        if kind not in ("str", "dict"):  # str also stands for unions of text with lists or mappings
            raise ValueError(f"expected {kind}, got {value!r}")
        return value
    if isinstance(value, bool) and kind in ("str", "string_to_bool"):
        return value
    return str(value)
