"""The desired models: the text of a model ConfigMap -> specs, and an error for each refused model.

Law: pure. Standard library only, no I/O, no clock, no other module of this package except quantities: the
webhook validates ConfigMaps with the parser of the sidecar. A bad model does not affect the others, and no
input raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING
from hashlib import sha256
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from puller.quantities import decimal_of

LIST_KEY = "models.json"
"""The key with an array of models; every other key `<name>.json` has one model."""

SCHEMES = ("s3", "gs", "az", "https", "http", "hf", "oci", "file", "pvc")

MAX_NAME = 253
MAX_URI = 4096
MAX_TEXT = 253
MAX_MEMORY = 1 << 50
"""One pebibyte: a larger `memory` is a typing error."""
MAX_PRIORITY = 1_000_000
MAX_MODELS = 20_000
"""Of one list; no ConfigMap has room for more valid ones."""
MAX_UNKNOWN = 8
"""Warnings about unknown fields of one model."""
MAX_GLOBS = 1000
MAX_GLOB = 1024
"""Characters; keys of stores are not longer."""

_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_HF_PATH = re.compile(r"/[^/:]+(:[^/:]+)?/?")
OCI_REFERENCE = re.compile(
    r"/(?P<repository>[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*)"
    r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?"
)
"""The path of an oci:// URI."""
_BUCKET = re.compile(r"[a-zA-Z0-9_$][a-zA-Z0-9._$-]{0,254}")
"""More than any store allows, but no character that could turn the bucket into another host."""
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_FIELDS = frozenset({"storageUri", "framework", "memory", "sha256", "version", "files", "priority"})


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One desired model. `memory` is in bytes (0: unknown); `files` are globs (empty: all files)."""

    name: str
    storage_uri: str
    framework: str = ""
    memory: int = 0
    sha256: str = ""
    version: str = ""
    files: tuple[str, ...] = ()
    priority: int = 0

    @property
    def content(self) -> tuple[str, str, str, str, tuple[str, ...]]:
        """The fields that determine the files and the loaded model. An edit of the others, `memory` and
        `priority`, causes no download and no reload."""
        return (self.storage_uri, self.framework, self.sha256, self.version, self.files)

    @property
    def digest(self) -> str:
        """Hex SHA-256 of `content`; part of the name of the marker file on disk."""
        return sha256(json.dumps(self.content).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The modelSpec object; `from_json` reads an equal spec from it."""
        required = {"storageUri": self.storage_uri, "framework": self.framework, "memory": str(self.memory)}
        optional = {
            "sha256": self.sha256,
            "version": self.version,
            "files": list(self.files),
            "priority": self.priority,
        }
        return required | {name: value for name, value in optional.items() if value}


@dataclass(frozen=True, slots=True)
class SpecError:
    """One error, in one sentence. `path`: the JSON path in the key, empty for the whole text. `model`: the
    name of the model, empty if unknown."""

    key: str
    path: str
    message: str
    model: str = ""

    @property
    def where(self) -> str:
        return self.key + self.path

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@dataclass(frozen=True, slots=True)
class DesiredModels:
    """The models of a config.

    `models`: the valid ones, by name. `errors`: why others are refused. `warnings`: unknown fields. `keys`:
    the key of the ConfigMap for each of `models`. `unreadable`: keys whose text is not a list of models (or a
    model).
    """

    models: Mapping[str, ModelSpec] = field(default_factory=dict)
    errors: tuple[SpecError, ...] = ()
    warnings: tuple[SpecError, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()

    @property
    def refused(self) -> frozenset[str]:
        """Models whose entries cannot be used."""
        return frozenset(error.model for error in self.errors if error.model) - self.models.keys()

    @property
    def blind(self) -> bool:
        """Whether the list is unreadable, so that any model may be listed."""
        return LIST_KEY in self.unreadable


class RefusedError(ValueError):
    """A refused value. `path`: relative to the value that is read."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


def parse(files: Mapping[str, str], schemes: Collection[str] = SCHEMES) -> DesiredModels:
    """The models in ConfigMap data (key -> text), in time and memory linear in its length. Never raises.
    `schemes`: the allowed schemes of a storageUri. Keys that do not end in `.json` are ignored.
    """
    found: dict[str, list[tuple[str, str, ModelSpec]]] = {}
    errors: list[SpecError] = []
    warnings: list[SpecError] = []
    unreadable: set[str] = set()
    for key in sorted(key for key in files if key.endswith(".json")):
        try:
            entries = _entries(key, files[key])
        except RefusedError as refusal:
            name = key.removesuffix(".json")
            model = name if key != LIST_KEY and valid_name(name) else ""
            errors.append(SpecError(key, refusal.path, refusal.message, model))
            unreadable.add(key)
            continue
        for base, entry in entries:
            name = ""
            try:
                name, raw, at = _named(key, entry)
                spec = from_json(name, raw, at)
                scheme = urlsplit(spec.storage_uri).scheme
                if scheme not in schemes:
                    message = f"{scheme}:// is not allowed here; {', '.join(schemes)} are."
                    raise RefusedError(f"{at}.storageUri", message)  # noqa: TRY301
            except RefusedError as refusal:
                errors.append(SpecError(key, base + refusal.path, refusal.message, name))
                continue
            found.setdefault(name, []).append((key, base, spec))
            warnings += [
                SpecError(
                    key, f"{base}{at}{_member(unknown)}", "this field is unknown and has no effect.", name
                )
                for unknown in sorted(raw.keys() - _FIELDS)[:MAX_UNKNOWN]
            ]
    return _without_duplicates(found, errors, warnings, unreadable)


def carry_over(new: DesiredModels, last_good: DesiredModels) -> DesiredModels:
    """`new`, with the unreadable entries replaced from `last_good`: a bad edit does not remove a served
    model."""
    models = dict(new.models)
    keys = dict(new.keys)
    refused = new.refused
    for name, spec in last_good.models.items():
        if name not in models and (name in refused or last_good.keys[name] in new.unreadable):
            models[name] = spec
            keys[name] = last_good.keys[name]
    return DesiredModels(models, new.errors, new.warnings, keys, new.unreadable)


def from_json(name: str, raw: Any, at: str = "") -> ModelSpec:
    """A modelSpec object -> ModelSpec. Raises RefusedError with paths below `at`."""
    if not isinstance(raw, dict):
        raise RefusedError(at, f"must be a modelSpec object, not {_kind(raw)}.")
    return ModelSpec(
        name=name,
        storage_uri=_storage_uri(raw.get("storageUri"), f"{at}.storageUri"),
        framework=_text(raw.get("framework"), f"{at}.framework"),
        memory=_memory(raw.get("memory"), f"{at}.memory"),
        sha256=_sha256(raw.get("sha256"), f"{at}.sha256"),
        version=_text(raw.get("version"), f"{at}.version", numbers=True),
        files=_globs(raw.get("files"), f"{at}.files"),
        priority=_priority(raw.get("priority"), f"{at}.priority"),
    )


def quantity(value: object) -> int:
    """Plain bytes (7516192768, "7516192768") or a Kubernetes quantity ("7Gi", "1.5G", "1e9") -> bytes,
    rounded up as Kubernetes does. Raises ValueError with one sentence."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(  # noqa: TRY004  (a refused value like any other)
            f"must be a number of bytes or a Kubernetes quantity such as 2Gi, not {_kind(value)}."
        )
    number = decimal_of(str(value))
    if number is None:
        raise ValueError(
            f"{_shown(value)} is neither a number of bytes nor a Kubernetes quantity such as 2Gi."
        )
    return int(number.to_integral_value(ROUND_CEILING))


def _entries(key: str, text: str) -> list[tuple[str, Any]]:
    """(JSON path, entry) of each model that the text of a key lists."""
    try:
        data = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except RefusedError:
        raise
    except json.JSONDecodeError as error:
        raise RefusedError(
            "", f"is not JSON: {error.msg} (line {error.lineno}, column {error.colno})."
        ) from None
    except (ValueError, RecursionError):
        raise RefusedError("", "is not usable JSON: a number is too long or the nesting too deep.") from None
    if key != LIST_KEY:
        return [("", data)]
    if not isinstance(data, list):
        raise RefusedError("", f"must be an array of models, not {_kind(data)}.")
    if len(data) > MAX_MODELS:
        raise RefusedError("", f"has {len(data)} entries; the maximum is {MAX_MODELS}.")
    return [(f"[{index}]", entry) for index, entry in enumerate(data)]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise RefusedError("", f"has the key {_shown(name)} twice in one object; keep one of them.")
        members[name] = value
    return members


def _no_constant(name: str) -> Any:
    raise RefusedError("", f"contains {name}, which is not JSON.")


def _named(key: str, entry: Any) -> tuple[str, Any, str]:
    """(model name, its raw modelSpec, the modelSpec's path within the entry)."""
    name: Any = key.removesuffix(".json")
    raw, name_path, spec_path = entry, "", ""
    if key == LIST_KEY:
        if not isinstance(entry, dict):
            raise RefusedError("", f'must be an object with "modelName" and "modelSpec", not {_kind(entry)}.')
        name, name_path = entry.get("modelName"), ".modelName"
        raw, spec_path = entry.get("modelSpec"), ".modelSpec"
    if not valid_name(name):
        message = (
            f"{_shown(name)} is not a model name: use 1 to {MAX_NAME} of the characters a-z A-Z 0-9 _ -."
        )
        raise RefusedError(name_path, message)
    return name, raw, spec_path


def _without_duplicates(
    found: Mapping[str, list[tuple[str, str, ModelSpec]]],
    errors: list[SpecError],
    warnings: list[SpecError],
    unreadable: Iterable[str],
) -> DesiredModels:
    """Refuse names that are listed more than once, unless their specs are equal."""
    models: dict[str, ModelSpec] = {}
    keys: dict[str, str] = {}
    refused = {error.model for error in errors}
    for name, entries in found.items():
        first_key, first_path, first = entries[0]
        errors += [
            SpecError(
                key, path, f"model {name} is already listed at {first_key}{first_path}; list it once.", name
            )
            for key, path, _ in entries[1:]
        ]
        if name not in refused and all(spec == first for _, _, spec in entries):
            models[name] = first
            keys[name] = first_key
    return DesiredModels(models, tuple(errors), tuple(warnings), keys, frozenset(unreadable))


def valid_name(name: object) -> bool:
    return isinstance(name, str) and len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None


def _storage_uri(value: object, path: str) -> str:
    if not isinstance(value, str) or not value:
        raise RefusedError(path, "is required: the URI of the model's files, such as s3://bucket/path.")
    if len(value) > MAX_URI or not value.isprintable() or value != value.strip():
        raise RefusedError(path, f"must be at most {MAX_URI} printable characters with no space around them.")
    try:
        uri = urlsplit(value)
        _ = uri.port
    except ValueError:  # its text repeats parts of the URI, which may be a password with unencoded characters
        raise RefusedError(path, "is not a URI: its host or its port is not valid.") from None
    try:
        _check_uri(uri)
    except ValueError as error:
        why = str(error).removesuffix(".")
        raise RefusedError(path, f"{_shown(without_secrets(value))} is not usable: {why}.") from None
    return uri.scheme + value[len(uri.scheme) :]  # in lower case


def without_secrets(uri: str) -> str:
    """The URI without credentials before the host and without the query, which may contain a signature."""
    head = uri.partition("?")[0]
    scheme, separator, rest = head.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}" + ("?…" if head != uri else "")


def _check_uri(uri: SplitResult) -> None:
    """Raises ValueError with the reason for a URI that no model can have."""
    if uri.scheme not in SCHEMES:
        raise ValueError(f"the scheme must be one of {', '.join(SCHEMES)}.")
    if uri.username is not None or uri.password is not None:
        raise ValueError("credentials do not belong in a URI; set them in the environment or a Secret.")
    if ".." in unquote(uri.path).replace("\\", "/").split("/"):
        raise ValueError('the path must not contain "..".')
    if uri.scheme == "file":
        if uri.netloc not in ("", "localhost") or not uri.path.strip("/"):
            raise ValueError("it must be file:///absolute/path.")
    elif not uri.netloc:
        raise ValueError(f"{uri.scheme}:// must be followed by {_AUTHORITY.get(uri.scheme, 'a host')}.")
    keyless = not uri.path and (uri.query or uri.fragment)  # `s3://bucket?x`: not a bucket of that name
    if uri.scheme in ("s3", "gs", "az") and (keyless or not _BUCKET.fullmatch(uri.netloc)):
        raise ValueError(f"{uri.scheme}:// must be followed by {_AUTHORITY[uri.scheme]} and a slash.")
    if uri.scheme in ("file", "pvc", "hf", "oci") and (uri.query or uri.fragment):
        raise ValueError('a query or fragment is not allowed; write "?" and "#" in a path as %3F and %23.')
    if uri.scheme == "oci" and not OCI_REFERENCE.fullmatch(uri.path):
        raise ValueError("it must be oci://registry/repository, with :tag or @sha256:digest after it.")
    if uri.scheme == "hf" and not _HF_PATH.fullmatch(uri.path):
        raise ValueError("it must be hf://organisation/model, with an optional :revision after it.")


_AUTHORITY = {
    "s3": "a bucket",
    "gs": "a bucket",
    "az": "a container",
    "pvc": "a claim's name",
    "hf": "an organisation",
    "oci": "a registry's host",
}


def _memory(value: object, path: str) -> int:
    if value is None or value == "":
        return 0
    try:
        size = quantity(value)
    except ValueError as error:
        raise RefusedError(path, str(error)) from None
    if not 0 <= size <= MAX_MEMORY:
        raise RefusedError(path, f"{_shown(value)} is not between 0 and 1Pi.")
    return size


def _sha256(value: object, path: str) -> str:
    if value is None or value == "":
        return ""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise RefusedError(path, "must be a SHA-256 digest: 64 hexadecimal digits.")
    return value.lower()


def _text(value: object, path: str, *, numbers: bool = False) -> str:
    if value is None:
        return ""
    if numbers and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
        raise RefusedError(path, f"must be at most {MAX_TEXT} printable characters.")
    return value


def _globs(value: object, path: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise RefusedError(
            path, f'must be an array of globs such as ["*.json", "weights/**"], not {_kind(value)}.'
        )
    if len(value) > MAX_GLOBS:
        raise RefusedError(path, f"has {len(value)} globs; the maximum is {MAX_GLOBS}.")
    for index, glob in enumerate(value):
        valid = isinstance(glob, str) and 0 < len(glob) <= MAX_GLOB and glob.isprintable()
        if not valid or glob.startswith("/") or ".." in glob.split("/"):
            raise RefusedError(
                f"{path}[{index}]", "must be a glob below the model's directory, such as weights/**."
            )
    return tuple(value)


def _priority(value: object, path: str) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_PRIORITY:
        raise RefusedError(path, f"must be a whole number between -{MAX_PRIORITY} and {MAX_PRIORITY}.")
    return value


def _kind(value: object) -> str:
    """The JSON type of a value, in words."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: object) -> str:
    """The first 80 characters of a value as JSON."""
    if isinstance(value, dict | list) and value:
        return _kind(value)
    text = json.dumps(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 80 else text[:77] + "…"


def _member(name: str) -> str:
    return f".{name}" if name.isidentifier() else f"[{_shown(name)}]"
