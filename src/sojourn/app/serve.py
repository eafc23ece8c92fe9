"""`sojourn serve`: options to a supervised front and engine."""

import asyncio
import os
import socket
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from sojourn.api.settings import FrontSettings, MetricsCompat
from sojourn.app import config
from sojourn.app.cli_options import (
    DiskCacheAheadOption,
    DiskCacheBytesOption,
    DiskCacheOption,
    DraftsMaxOption,
    EnableStreamingOption,
    HostOption,
    ImportKvOption,
    ImportMibOption,
    MetricsCompatOption,
    OverlapOption,
    ReportDirOption,
    SessionTimeoutOption,
    SpeculateOption,
    StrictOption,
)
from sojourn.app.commands import plain_app
from sojourn.app.config import NGRAM, NO_DRAFTS, EngineOptions, WeightsWidth
from sojourn.app.limits import LimitOption, Limits
from sojourn.app.logs import configure
from sojourn.app.processes import EngineStart, FrontStart, LogFormat
from sojourn.app.ready import ReadyPipe
from sojourn.app.run_folder import run_folder
from sojourn.app.store_options import (
    MIB_MAX,
    DataDirOption,
    DurabilityOption,
    StoreDaysOption,
    StoreMibOption,
    StoreOptions,
    StoreSyncOption,
)
from sojourn.app.supervisor import Part, Supervisor, listen
from sojourn.backends.protocol import KvDtype
from sojourn.core.bounds import check_number, check_range
from sojourn.core.errors import ClientError, ModelError
from sojourn.models.names import check_model
from sojourn.sessions.store import Durability

LOOPBACK = ("127.0.0.1", "::1", "localhost")
app = plain_app()


@app.command()
def serve(
    model: Annotated[str, typer.Option(help="Catalogue name, GGUF file, model folder or hub id.")] = "smollm2",
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free one, which is printed.")] = 8000,
    context: Annotated[int | None, typer.Option(help="Tokens of one conversation; by default up to 8192.")] = None,
    pool_tokens: Annotated[int, typer.Option(help="Tokens of KV that all share.")] = 32768,
    max_running: Annotated[int, typer.Option(help="Turns at the same time; others wait.")] = 16,
    chunk: Annotated[int, typer.Option(help="Most tokens of one prompt in one step.")] = 512,
    page_size: Annotated[int, typer.Option(help="Tokens per page, a power of two.")] = 16,
    weights: Annotated[WeightsWidth | None, typer.Option(help="Width of weights; by default the file's own.")] = None,
    kv_dtype: Annotated[KvDtype, typer.Option(help="Type of cached keys and values.")] = "f16",
    threads: Annotated[int | None, typer.Option(help="Compute threads; by default one per physical core.")] = None,
    overlap: OverlapOption = None,
    speculate: SpeculateOption = NO_DRAFTS,
    drafts_max: DraftsMaxOption = 8,
    strict_mem_check: Annotated[int, typer.Option(help="0: census when idle; 1: and every 5 s; 2: every step.")] = 1,
    api_key_file: Annotated[str | None, typer.Option(help="Lines of '<sha256 of key> <role> <tenant>'.")] = None,
    sessions: Annotated[int, typer.Option(help="Sessions that may be open.")] = 4096,
    limit: LimitOption = None,
    session_timeout: SessionTimeoutOption = None,
    durability: DurabilityOption = Durability.TURN,
    data_dir: DataDirOption = None,
    store_mib: StoreMibOption = 4096,
    store_days: StoreDaysOption = 30.0,
    store_sync: StoreSyncOption = False,
    disk_cache: DiskCacheOption = None,
    disk_cache_bytes: DiskCacheBytesOption = 4 << 30,
    disk_cache_ahead: DiskCacheAheadOption = True,
    import_kv: ImportKvOption = False,
    import_mib: ImportMibOption = 1024,
    enable_streaming_session: EnableStreamingOption = True,
    shutdown_timeout: Annotated[float, typer.Option(help="Seconds that running turns have at SIGTERM.")] = 30.0,
    report_dir: ReportDirOption = None,
    log_format: Annotated[LogFormat, typer.Option(help="json: one object per line, each field by its name.")] = "text",
    metrics_compat: MetricsCompatOption = None,
    strict: StrictOption = False,
) -> int:
    """Serve a model over HTTP. SIGTERM drains; a second one ends at once."""
    options = EngineOptions(
        context=context, weights=weights, kv_dtype=kv_dtype, threads=threads, page_size=page_size,
        pool_tokens=pool_tokens, max_running=max_running, chunk=chunk, strict_mem_check=strict_mem_check,
        overlap=overlap, speculate=speculate, drafts_max=drafts_max,
        disk_cache=None if disk_cache is None else str(disk_cache),
        disk_cache_bytes=disk_cache_bytes, disk_cache_ahead=disk_cache_ahead,
    )  # fmt: skip
    options.check()
    check_models(model, speculate)
    keeping = StoreOptions(durability, str(data_dir or config.data_dir()), store_mib, store_days, store_sync)
    keeping.check()
    limits = Limits.of(sessions, limit)
    check_address(host, port, has_keys=api_key_file is not None)
    settings = front_settings(shutdown_timeout, metrics_compat, limits, strict=strict)
    settings = with_files(settings, options, import_mib, import_kv=import_kv)
    front = FrontStart(-1, settings, api_key_file, log_format)
    engine = EngineStart(
        address="",
        model=model,
        options=options,
        session_timeout_s=checked_timeout(session_timeout),
        limits=limits,
        report_dir=made_report_dir(report_dir),
        log_format=log_format,
        keeping=keeping,
        access=f"from {api_key_file}" if api_key_file else "none: this machine only",
    )
    return run_both(host, port, front, engine)


def front_settings(
    shutdown_timeout: float, compat: MetricsCompat | None, limits: Limits, *, strict: bool
) -> FrontSettings:
    check_number("shutdown_timeout", shutdown_timeout, 0, 86_400)
    settings = FrontSettings("", version("sojourn"), shutdown_timeout_s=shutdown_timeout, metrics_compat=compat)
    most, of_one = limits.requests, limits.tenant_turns
    return replace(settings, requests_max=most, tenant_requests_max=of_one, is_strict=strict)


def with_files(settings: FrontSettings, options: EngineOptions, import_mib: int, *, import_kv: bool) -> FrontSettings:
    """What the front does with files of sessions, and where the engine has its pages."""
    check_range("import_mib", import_mib, 1, MIB_MAX)
    if import_kv and options.disk_cache is None:
        raise ClientError("--import-kv needs --disk-cache, a folder to take KV into", param="import_kv")
    disk_cache = options.disk_cache
    return replace(settings, import_kv=import_kv, import_bytes_max=import_mib << 20, disk_cache=disk_cache)


def check_models(model: str, speculate: str) -> None:
    """Raise ClientError for a name that is no model's, before anything is started. Those that are may yet not load."""
    named = {"model": model} if speculate in (NO_DRAFTS, NGRAM) else {"model": model, "speculate": speculate}
    for param, name in named.items():
        try:
            check_model(name)
        except ModelError as error:
            also = f"; or {NO_DRAFTS}, or {NGRAM}" if param == "speculate" else ""
            raise ClientError(f"--{param} {error}{also}", param=param) from error


def check_address(host: str, port: int, *, has_keys: bool) -> None:
    """Raise ClientError for a port that is none, and for listening beyond this machine without keys."""
    check_range("port", port, 0, 65535)
    if host not in LOOPBACK and not has_keys:
        raise ClientError(f"listening on {host}, beyond this machine, needs --api-key-file", param="host")


def checked_timeout(session_timeout: float | None) -> float | None:
    if session_timeout is not None:
        check_number("session_timeout", session_timeout, 0, 31_536_000, low_open=True)
    return session_timeout


def made_report_dir(directory: Path | None) -> str | None:
    """The folder, made if need be. ClientError where no report could be left: better now than when it is needed."""
    if directory is None:
        return None
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClientError(f"report_dir cannot be made: {error}", param="report_dir") from error
    if not os.access(directory, os.W_OK):
        raise ClientError(f"report_dir {directory} cannot be written to", param="report_dir")
    return str(directory)


def run_both(host: str, port: int, front: FrontStart, engine: EngineStart) -> int:
    """Open the socket, give both parts their places, and keep them running until a signal. The exit code."""
    configure(engine.log_format)
    listener = listen(host, port)
    try:
        with (
            run_folder(Path(tempfile.gettempdir())) as place,
            ReadyPipe() as front_ready,
            ReadyPipe() as engine_ready,
        ):
            settings = replace(front.settings, address=f"ipc://{place}/engine")
            front = replace(front, fd=listener.fileno(), settings=settings, ready_fd=front_ready.fd)
            engine = replace(engine, address=settings.address, ready_fd=engine_ready.fd)
            parts = (
                Part("front", "sojourn.app.front_process", front.to_json(), (front.fd, front_ready.fd), front_ready),
                Part("engine", "sojourn.app.engine_process", engine.to_json(), (engine_ready.fd,), engine_ready),
            )
            return _run_both(host, listener, parts, settings.shutdown_timeout_s)
    finally:
        listener.close()


def _run_both(host: str, listener: socket.socket, parts: tuple[Part, Part], shutdown_timeout_s: float) -> int:
    shown = f"[{host}]" if ":" in host else host
    typer.echo(f"sojourn: http://{shown}:{listener.getsockname()[1]}")
    return asyncio.run(Supervisor(*parts, shutdown_timeout_s).run())
