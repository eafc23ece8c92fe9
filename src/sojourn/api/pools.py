"""GET /v1/pools: the pages of each pool by owner, and whether they add up. For administrators."""

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from sojourn.api import wire
from sojourn.api.auth import Role, principal_of
from sojourn.api.requests import front_of

router = APIRouter(tags=["pools"])


class PoolObject(BaseModel):
    """free + fenced + reserved + tree + running + idle + leaked == total; `evictable` are of tree and idle."""

    pool: str
    total: int
    free: int
    fenced: int
    reserved: int
    tree: int
    running: int
    idle: int
    evictable: int
    leaked: int


class UnwrittenObject(BaseModel):
    """What a killed engine would have to compute again: idle sessions to be written, pages on their way to files."""

    sessions: int
    pages: int


class PoolsObject(BaseModel):
    object: Literal["pools"] = "pools"
    page_size: int
    identity: bool
    pools: list[PoolObject]
    unwritten: UnwrittenObject | None = Field(default=None, description="null without a disk cache")


class FlushedObject(BaseModel):
    flushed: bool


def leaked(pool: wire.PoolPages) -> int:
    return pool.total - (pool.free + pool.fenced + pool.reserved + pool.tree + pool.running + pool.idle)


@router.get("/v1/pools", operation_id="show_pools")
async def show_pools(request: Request) -> PoolsObject:
    """Pages of each pool by owner; `identity`: they add up."""
    front = front_of(request)
    principal_of(request, Role.ADMIN)
    shown = await front.link.ask(wire.ShowPools(), wire.Pools)
    pools = [
        PoolObject(
            pool=pool.pool,
            total=pool.total,
            free=pool.free,
            fenced=pool.fenced,
            reserved=pool.reserved,
            tree=pool.tree,
            running=pool.running,
            idle=pool.idle,
            evictable=pool.evictable,
            leaked=leaked(pool),
        )
        for pool in shown.pools
    ]
    page_size = front.text.card.page_size
    waiting = shown.unwritten
    return PoolsObject(
        page_size=page_size,
        identity=not any(pool.leaked for pool in pools),
        pools=pools,
        unwritten=None if waiting is None else UnwrittenObject(sessions=waiting.sessions, pages=waiting.pages),
    )


@router.post("/v1/pools/flush", operation_id="flush_pools")
async def flush_pools(request: Request) -> FlushedObject:
    """Drop cached and idle KV; sessions and their histories live. 409 while anything runs."""
    principal_of(request, Role.ADMIN)
    await front_of(request).link.ask(wire.Flush(), wire.Done)
    return FlushedObject(flushed=True)
