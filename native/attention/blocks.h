// Finds the blocks of 16 positions of K and V that a span needs. Pages smaller than a block are gathered into scratch,
// in the layout that a block of a larger page has, so one kernel serves every page size with the same bits.
#pragma once
#include "native/attention/unit.h"
#include "native/simd/lanes.h"

namespace sojourn {

// Blocks [first, first + count) of the span.
template <class L, class E>
struct SpanBlocks {
    int first = 0;
    int count = 0;
    const E* keys[kSpanBlocks];    // [head_dim][16]
    const E* values[kSpanBlocks];  // [16][head_dim]
};

template <class L, class E>
const E* head_in_page(const PagedHead& kv, int page_index) {
    const int page = page_index < kv.num_pages ? kv.pages[page_index] : 0;
    return reinterpret_cast<const E*>(kv.page_zero + static_cast<size_t>(page) * kv.page_bytes);
}

// Block `block` (an absolute index) from pages of fewer than 16 positions.
template <class L, class E>
void gather_block(const PagedHead& kv, int head_dim, int block, E* keys, E* values) {
    const int size = kv.page_size;
    for (int offset = 0; offset < kBlock; offset += size) {
        const E* page_keys = head_in_page<L, E>(kv, (block * kBlock + offset) / size);
        const E* page_values = page_keys + static_cast<size_t>(size) * head_dim;
        for (int d = 0; d < head_dim; d++) {
            for (int i = 0; i < size; i++) keys[d * kBlock + offset + i] = page_keys[d * size + i];
        }
        for (int i = 0; i < size * head_dim; i++) values[offset * head_dim + i] = page_values[i];
    }
}

// Blocks that cover positions [begin, end), which lie in one span.
template <class L, class E>
void locate_blocks(const PagedHead& kv, int head_dim, int begin, int end, E* gathered, SpanBlocks<L, E>& blocks) {
    const int first_block = begin / kBlock;
    blocks.first = first_block % kSpanBlocks;
    blocks.count = (end + kBlock - 1) / kBlock - first_block;
    const int block_elements = kBlock * head_dim;
    for (int i = 0; i < blocks.count; i++) {
        const int block = first_block + i;
        if (kv.page_size < kBlock) {
            E* keys = gathered + static_cast<size_t>(i) * 2 * block_elements;
            gather_block<L, E>(kv, head_dim, block, keys, keys + block_elements);
            blocks.keys[i] = keys;
            blocks.values[i] = keys + block_elements;
        } else {
            const int blocks_per_page = kv.page_size / kBlock;
            const E* head = head_in_page<L, E>(kv, block / blocks_per_page);
            const size_t inside = static_cast<size_t>(block % blocks_per_page) * block_elements;
            blocks.keys[i] = head + inside;
            blocks.values[i] = head + static_cast<size_t>(kv.page_size) * head_dim + inside;
        }
    }
}

}  // namespace sojourn
