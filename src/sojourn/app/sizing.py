"""From options and a model to the size of everything: context, pools, bytes. Decides, allocates nothing."""

from dataclasses import dataclass

from sojourn.app.config import CONTEXT_DEFAULT, EngineOptions, overlaps
from sojourn.core.errors import ClientError
from sojourn.core.step import Pool
from sojourn.models.config import ModelConfig
from sojourn.pages.sizing import NUM_RESERVED, KvShape, PoolLayout, page_bytes, pool_totals

VALUE_BYTES = {"f16": 2, "f32": 4}


@dataclass(frozen=True, slots=True)
class EngineSize:
    """Lengths in tokens; `totals` are pages of each pool of `layout`, null pages included."""

    context: int
    pool_tokens: int
    layout: PoolLayout
    totals: tuple[int, ...]

    @property
    def pages_of_both(self) -> tuple[int, int]:
        """What a back end is given: it knows two pools, of which one may have nothing but the null page."""
        return self.totals[Pool.FULL], self.totals[Pool.SWA] if len(self.totals) > 1 else NUM_RESERVED


def choose_context(name: str, config: ModelConfig, options: EngineOptions) -> int:
    """The context to serve: as asked for, else the default, never above the model's own or the pool's."""
    if options.context is None:
        return min(config.context_length, CONTEXT_DEFAULT, options.pool_tokens or CONTEXT_DEFAULT)
    if options.context > config.context_length:
        raise ClientError(
            f"context {options.context:,} is over the model's own: {name} has {config.context_length:,}",
            param="context",
        )
    return options.context


def choose_size(name: str, config: ModelConfig, options: EngineOptions) -> EngineSize:
    """Pools in which one conversation may use the whole context, or as large as asked for."""
    context = choose_context(name, config, options)
    layout = PoolLayout(options.page_size, config.attention.sliding_window)
    pool_tokens = max(context, options.pool_tokens or 0)
    return EngineSize(context, pool_tokens, layout, _totals(layout, pool_tokens, options))


def _totals(layout: PoolLayout, pool_tokens: int, options: EngineOptions) -> tuple[int, ...]:
    """With overlap two chunks of a prompt are in flight. One would do, but then every other step waits for places."""
    in_flight = options.chunk * (2 if overlaps(options) else 1)
    return pool_totals(layout, pool_tokens, chunk=in_flight, running_max=options.max_running)


def kv_bytes(config: ModelConfig, options: EngineOptions, pool_tokens: int) -> int:
    """Bytes of both pools when the full pool holds `pool_tokens`."""
    return sum(bytes_of_pools(config, options, pool_tokens))


def bytes_of_pools(config: ModelConfig, options: EngineOptions, pool_tokens: int) -> tuple[int, ...]:
    """As `kv_bytes`, pool by pool."""
    totals = _totals(PoolLayout(options.page_size, config.attention.sliding_window), pool_tokens, options)
    return tuple(total * size for total, size in zip(totals, page_bytes_of(config, options), strict=True))


def draft_pages(options: EngineOptions, pool_tokens: int) -> int:
    """Pages of a draft model's pool, the null page included: it follows as many tokens as the full pool holds."""
    return PoolLayout(options.page_size).pages_for(pool_tokens) + NUM_RESERVED


def draft_kv_bytes(config: ModelConfig, options: EngineOptions, pool_tokens: int) -> int:
    """Bytes of a draft model's pool: its sliding layers, too, keep every token."""
    return draft_pages(options, pool_tokens) * sum(page_bytes_of(config, options))


def page_bytes_of(config: ModelConfig, options: EngineOptions) -> tuple[int, ...]:
    """Of a page of each pool."""
    attention = config.attention
    num_sliding = sum(attention.layer_slides)
    shape = KvShape(
        num_full_layers=config.num_layers - num_sliding,
        num_sliding_layers=num_sliding,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        value_bytes=VALUE_BYTES[options.kv_dtype],
    )
    return page_bytes(shape, PoolLayout(options.page_size, attention.sliding_window))
