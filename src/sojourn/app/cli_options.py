"""Options of the command line that several commands take, or that are long to say."""

from pathlib import Path
from typing import Annotated

import typer

from sojourn.api.settings import MetricsCompat

OverlapOption = Annotated[
    bool | None,
    typer.Option("--overlap/--no-overlap", help="Plan a step while one runs; by default where a core is free."),
]
SpeculateOption = Annotated[
    str, typer.Option("--speculate", "--spec", help="Who guesses ahead: off, ngram, or a smaller model.")
]
DraftsMaxOption = Annotated[int, typer.Option(help="Most tokens guessed ahead.")]
HostOption = Annotated[str, typer.Option(help="Address to listen on; beyond this machine only with --api-key-file.")]
SessionTimeoutOption = Annotated[
    float | None, typer.Option(help="Seconds of idleness after which a session is closed.")
]
ReportDirOption = Annotated[Path | None, typer.Option(help="Where a broken law leaves its report, besides stderr.")]
StrictOption = Annotated[
    bool,
    typer.Option("--strict", help="Refuse unknown fields on the OpenAI surfaces instead of naming them in a header."),
]
MetricsCompatOption = Annotated[MetricsCompat | None, typer.Option(help="Metrics by another server's names, too.")]
EnableStreamingOption = Annotated[  # an option of the dialect; ours are always on
    bool, typer.Option("--enable-streaming-session", help="Accepted; streaming sessions are always on.")
]
DiskCacheOption = Annotated[
    Path | None, typer.Option(help="Folder for KV that the pool has no room for, and across restarts; by default none.")
]
DiskCacheBytesOption = Annotated[int, typer.Option(help="Most bytes in that folder.")]
ImportKvOption = Annotated[
    bool, typer.Option("--import-kv", help="Take KV from files of sessions: only where whoever imports is trusted.")
]
ImportMibOption = Annotated[int, typer.Option(help="Most MiB of such a file.")]
DiskCacheAheadOption = Annotated[
    bool,
    typer.Option(
        "--disk-cache-ahead/--no-disk-cache-ahead",
        help="Write idle conversations there while the disk is idle, so that a kill loses little.",
    ),
]
