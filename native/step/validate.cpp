#include "native/step/validate.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <vector>

namespace sojourn {

namespace {

[[gnu::format(printf, 2, 3)]] void require(bool condition, const char* format, ...) {
    if (condition) return;
    char message[256];
    va_list values;
    va_start(values, format);
    std::vsnprintf(message, sizeof message, format, values);
    va_end(values);
    throw std::invalid_argument(message);
}

// A page index that no context reaches; keeps a wrong edit from growing a table without end.
constexpr int kTableMax = 1 << 24;

void check_token_ids(std::span<const int32_t> ids, int vocab_size, const char* what) {
    for (const int32_t id : ids) {
        require(id >= 0 && id < vocab_size, "%s: token id %d is not in [0, %d)", what, id, vocab_size);
    }
}

void check_sampling(const SamplingRow& row, int vocab_size) {
    require(row.temperature >= 0.0f, "temperature %g is below 0", static_cast<double>(row.temperature));
    require(row.temperature == 0.0f || (std::isfinite(row.temperature) && std::isfinite(1.0f / row.temperature)),
            "temperature %g or its inverse is not finite", static_cast<double>(row.temperature));
    require(row.top_p > 0.0f, "top_p %g is not above 0", static_cast<double>(row.top_p));
    // 1 keeps the likeliest only; what is written as below 1 may round to it.
    require(row.min_p >= 0.0f && row.min_p <= 1.0f, "min_p %g is not in [0, 1]", static_cast<double>(row.min_p));
    require(row.repetition_penalty > 0.0f && std::isfinite(row.repetition_penalty),
            "repetition_penalty %g is not finite and above 0", static_cast<double>(row.repetition_penalty));
    require(std::isfinite(row.presence_penalty), "presence_penalty %g is not finite",
            static_cast<double>(row.presence_penalty));
    require(std::isfinite(row.frequency_penalty), "frequency_penalty %g is not finite",
            static_cast<double>(row.frequency_penalty));
    for (const float value : row.bias_values) {
        // Minus infinity is allowed: it bans a token.
        require(value < std::numeric_limits<float>::infinity(), "a bias of %g has no end", static_cast<double>(value));
    }
    require(row.num_prompt >= 0 && row.num_prompt <= static_cast<int>(row.history.size()),
            "%d prompt tokens in a history of %zu", row.num_prompt, row.history.size());
    require(row.known >= -1 && row.known < vocab_size, "known token %d is not in [-1, %d)", row.known, vocab_size);
    check_token_ids(row.history, vocab_size, "history");
    check_token_ids(row.bias_ids, vocab_size, "bias");
}

}  // namespace

void check_rows(const Batch& batch, const Limits& limits, int sequences) {
    const size_t count = batch.sequences.size();
    require(batch.starts.size() == count && batch.lengths.size() == count, "%zu sequences, %zu starts, %zu lengths",
            count, batch.starts.size(), batch.lengths.size());
    std::vector<bool> is_seen(static_cast<size_t>(sequences));
    int64_t rows = 0;
    for (size_t i = 0; i < count; i++) {
        const int sequence = batch.sequences[i];
        require(sequence >= 0 && sequence < sequences, "sequence %d is not in [0, %d)", sequence, sequences);
        require(!is_seen[static_cast<size_t>(sequence)], "sequence %d occurs twice", sequence);
        is_seen[static_cast<size_t>(sequence)] = true;
        require(batch.starts[i] >= 0, "sequence %d starts at %d", sequence, batch.starts[i]);
        require(batch.lengths[i] > 0, "sequence %d has %d rows", sequence, batch.lengths[i]);
        const int64_t end = int64_t{batch.starts[i]} + batch.lengths[i];
        require(end <= limits.config.context_length, "sequence %d ends at %lld, past the context of %d", sequence,
                static_cast<long long>(end), limits.config.context_length);
        rows += batch.lengths[i];
    }
    require(rows == static_cast<int64_t>(batch.tokens.size()), "%lld rows for %zu tokens", static_cast<long long>(rows),
            batch.tokens.size());
    check_token_ids(batch.tokens, limits.config.vocab_size, "tokens");

    int before = -1;
    for (const int32_t row : batch.logit_rows) {
        require(row > before && row < rows, "logit row %d is not in (%d, %lld)", row, before,
                static_cast<long long>(rows));
        before = row;
    }
    require(batch.sampling.empty() || batch.sampling.size() == batch.logit_rows.size(),
            "%zu rows to sample, parameters for %zu", batch.logit_rows.size(), batch.sampling.size());
    for (const SamplingRow& row : batch.sampling) check_sampling(row, limits.config.vocab_size);
    require(batch.num_logprobs >= -1 && batch.num_logprobs <= limits.config.vocab_size,
            "num_logprobs %d is not in [-1, %d]", batch.num_logprobs, limits.config.vocab_size);
}

void check_edits(const Batch& batch, const Limits& limits, int sequences) {
    for (const TableEdit& edit : batch.edits) {
        require(edit.sequence >= 0 && edit.sequence < sequences, "edit of sequence %d, not in [0, %d)", edit.sequence,
                sequences);
        require(edit.pool >= 0 && edit.pool < kPools, "edit of pool %d", edit.pool);
        require(edit.index >= 0 && edit.index < kTableMax, "edit at page index %d", edit.index);
        require(edit.page >= 0 && edit.page < limits.num_pages[edit.pool], "page %d is not in pool %d of %d pages",
                edit.page, edit.pool, limits.num_pages[edit.pool]);
    }
}

void check_pages(const Batch& batch, const Limits& limits, const PageTables& tables) {
    for (size_t i = 0; i < batch.sequences.size(); i++) {
        const int sequence = batch.sequences[i];
        const int start = batch.starts[i];
        const int end = start + batch.lengths[i];
        for (int pool = 0; pool < kPools; pool++) {
            if (!limits.has_layers[pool]) continue;
            const int seen = pool == kFull ? 0 : std::max(0, start + 1 - limits.config.sliding_window);
            const auto& pages = tables.pages(sequence, pool);
            const int last = (end - 1) / limits.page_size;
            require(last < static_cast<int>(pages.size()), "sequence %d ends at %d, pool %d holds %zu pages for it",
                    sequence, end, pool, pages.size());
            const int first = seen / limits.page_size;
            if (first >= tables.live_from(sequence, pool)) continue;
            for (int index = first; index <= last; index++) {
                require(pages[static_cast<size_t>(index)] != 0,
                        "sequence %d uses page index %d of pool %d, which is the null page", sequence, index, pool);
            }
        }
    }
}

}  // namespace sojourn
