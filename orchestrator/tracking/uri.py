"""The MLflow tracking URI: where it comes from, and whether it can be used, before anything is started.

No MLflow is imported in here: its import takes seconds, a refusal should not.
"""

from __future__ import annotations

import base64
import importlib.metadata
import importlib.util
import os
import re
import sqlite3
import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from orchestrator.credentials import MASK, hide
from orchestrator.credentials import is_masked as is_masked
from orchestrator.credentials import mask as mask
from orchestrator.errors import TrackingError
from orchestrator.storage import probe_folder

DEFAULT_DATABASE = "mlflow.db"
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
MANAGED = ("databricks", "databricks-uc", "uc")


def scrub(text: str, uri: str) -> str:
    """`text` of a message, without what `mask` hides of `uri` and without the environment's secrets."""
    try:
        user_info = urllib.parse.urlsplit(uri).netloc.rpartition("@")[0]
    except ValueError:  # an address that cannot be taken apart
        user_info = ""
    given = [user_info, user_info.partition(":")[2], *(value for _, value in _query(uri) if value not in mask(uri))]
    for secret in filter(None, given):
        text = text.replace(secret, MASK).replace(urllib.parse.unquote(secret), MASK)
    return str(hide(text))


def check_uri(uri: str | None, cwd: str | Path, *, timeout_s: float = 5.0, make: bool = True) -> str:
    """The tracking URI to use, absolute and proven usable as far as that is cheap.

    Args:
        uri: as configured; None takes ``MLFLOW_TRACKING_URI``, else ``sqlite:///mlflow.db`` in `cwd`. One that was
            masked when it was written down takes ``MLFLOW_TRACKING_URI`` if that is the same address.
        cwd: the project folder, which relative paths start from.
        timeout_s: how long a server may take to answer.
        make: whether the folder of an SQLite database is made, if it is missing.

    Raises:
        TrackingError: for a folder store, an unknown scheme, a database that cannot be written, a server that does
            not answer, or a masked address. Credentials in the URI do not appear in it.
    """
    key, given = "tracking.uri", os.environ.get("MLFLOW_TRACKING_URI")
    if given and (uri is None or (is_masked(uri) and _place(given) == _place(uri))):
        key, uri = "MLFLOW_TRACKING_URI", given
    if uri is not None and is_masked(uri):
        raise TrackingError(
            "the address lost its credentials when it was written down",
            key=key,
            value=uri,
            remedy="give it again with MLFLOW_TRACKING_URI or --set tracking.uri=...",
        )
    uri = uri or f"sqlite:///{DEFAULT_DATABASE}"
    scheme, separator, _ = uri.partition(":")
    scheme = scheme.lower()
    if not separator and scheme in MANAGED:
        return uri
    if not separator or scheme == "file" or (os.name == "nt" and len(scheme) == 1):
        raise _folder_store(uri, key)
    dialect = scheme.partition("+")[0]
    if dialect == "sqlite":
        return _check_sqlite(uri, Path(cwd).absolute(), key, make)
    if scheme in ("http", "https"):
        _check_server(uri, key, timeout_s)
    elif dialect not in (*DATABASES, *MANAGED) and scheme not in _plugin_schemes():
        raise TrackingError(
            f"the scheme must be one of {', '.join(('http', 'https', *DATABASES, *MANAGED))}",
            key=key,
            value=mask(uri),
            remedy=f"write sqlite:///{DEFAULT_DATABASE}, or the address of an MLflow server",
        )
    return uri


def make_folder(uri: str) -> None:
    """Make the folder of an SQLite database that `check_uri` passed; nothing for other URIs.

    Raises:
        TrackingError: it cannot be made.
    """
    if (path := sqlite_path(uri)) is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TrackingError(
                f"the database must be writable ({error.strerror or error})", key="tracking.uri", value=str(path)
            ) from error


def sqlite_path(uri: str) -> Path | None:
    """The file of an absolute SQLite URI; None for other URIs."""
    if uri.partition(":")[0].partition("+")[0].lower() != "sqlite":
        return None
    return Path(uri.partition(":///")[2].partition("?")[0])


def _query(uri: str) -> list[tuple[str, str]]:
    pairs = (part.partition("=") for part in uri.partition("?")[2].split("&"))
    return [(name, value) for name, _, value in pairs]


def _place(uri: str) -> str:
    """What an address names, whoever asks for it."""
    return re.sub(r"://[^/]*@", "://", mask(uri)).partition("?")[0].rstrip("/")


def _folder_store(uri: str, key: str) -> TrackingError:
    folder = urllib.parse.urlsplit(uri).path if uri.startswith("file:") else uri
    return TrackingError(
        "must be a database or a server: MLflow no longer serves plain folders",
        key=key,
        value=mask(uri),
        remedy=f"write sqlite:///{DEFAULT_DATABASE}; old runs move there with "
        f"`mlflow migrate-filestore --source {folder} --target sqlite:///{DEFAULT_DATABASE}`",
    )


def _check_sqlite(uri: str, cwd: Path, key: str, make: bool) -> str:
    head, separator, rest = uri.partition(":///")
    name, question, query = rest.partition("?")
    if not separator or name in ("", ":memory:") or name.startswith("file:"):
        raise TrackingError(
            "must name a database file, which the UI and later sweeps can open",
            key=key,
            value=mask(uri),
            remedy=f"write sqlite:///{DEFAULT_DATABASE}",
        )
    path = Path(os.path.abspath(cwd / os.path.expanduser(name)))
    remedy = "choose a folder that you may write to, such as sqlite:////home/me/mlflow.db"
    try:
        if make:
            path.parent.mkdir(parents=True, exist_ok=True)
        # SQLite keeps its journal beside the database, so the folder must be writable too.
        probe_folder(path.parent)
        if path.exists():
            _check_database(path, key, uri)
    except OSError as error:
        raise TrackingError(
            f"the database must be writable ({error.strerror or error})", key=key, value=str(path), remedy=remedy
        ) from error
    return f"{head}:///{path}{question}{query}"


def _check_database(path: Path, key: str, uri: str) -> None:
    with path.open("r+b") as file:
        header = file.read(16)
    if header and header != b"SQLite format 3\0":
        raise TrackingError(
            "the file must be an SQLite database",
            key=key,
            value=str(path),
            remedy="name another file; a new one is made if it is missing",
        )
    found, newest = _schema_revision(path), _newest_revision()
    if found and newest and found != newest:
        raise TrackingError(
            f"the database must have the schema of the installed MLflow ({newest}, found {found})",
            key=key,
            value=str(path),
            remedy=f"back it up, then run `mlflow db upgrade {mask(uri)}`",
        )


def _schema_revision(path: Path) -> str | None:
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=5)
    except sqlite3.Error:
        return None
    try:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error:
        return None
    finally:
        connection.close()
    return str(row[0]) if row else None


def _newest_revision() -> str | None:
    """The revision that no other migration of the installed MLflow builds on."""
    spec = importlib.util.find_spec("mlflow")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "store" / "db_migrations" / "versions"
    text = "\n".join(path.read_text() for path in folder.glob("*.py"))
    newest = set(re.findall(r"^revision\s*=\s*\"(\w+)\"", text, re.MULTILINE))
    newest -= set(re.findall(r"^down_revision\s*=\s*\"(\w+)\"", text, re.MULTILINE))
    return newest.pop() if len(newest) == 1 else None


def _check_server(uri: str, key: str, timeout_s: float) -> None:
    refusal = "the server must answer"
    for page in ("health", "version"):
        try:
            with urllib.request.urlopen(_request(uri, page), timeout=timeout_s, context=_tls()):
                return
        except urllib.error.HTTPError as error:
            # A server that wants credentials is there; MLflow's client sends them by its own rules.
            if error.code in (401, 403):
                return
            refusal = f"the server must be an MLflow server, and answers {error.code} to /{page}"
            if error.code != 404:
                break
        except (OSError, ValueError) as error:
            refusal = f"the server must answer within {timeout_s:g} s ({getattr(error, 'reason', error)})"
            break
    raise TrackingError(
        scrub(refusal, uri),
        key=key,
        value=mask(uri),
        remedy=f"start it, correct the address, or write sqlite:///{DEFAULT_DATABASE}",
    )


def _request(uri: str, page: str) -> urllib.request.Request:
    parts = urllib.parse.urlsplit(uri)
    user, _, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(f"{parts.scheme}://{host}{parts.path.rstrip('/')}/{page}")
    if user:
        credentials = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
        request.add_header("Authorization", f"Basic {credentials}")
    return request


def _tls() -> ssl.SSLContext:
    certificate = os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH")
    context = ssl.create_default_context(cafile=certificate)
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "false").lower() in ("true", "1"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _plugin_schemes() -> set[str]:
    return {point.name for point in importlib.metadata.entry_points(group="mlflow.tracking_store")}
