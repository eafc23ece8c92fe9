// Where one position lies inside a page of one KV head.
#pragma once
#include <algorithm>

#include "native/kv/store.h"

namespace sojourn {

struct PlaceInPage {
    size_t keys = 0;    // byte offset of the position's first K element
    int key_stride = 0;  // elements from one K element to the next
    size_t values = 0;  // byte offset of its V row
};

inline PlaceInPage place_in_page(const KvShape& shape, int offset) {
    const int block = std::min(shape.page_size, kBlock);
    const size_t element = bytes_of(shape.type);
    const size_t before = static_cast<size_t>(offset / block * block) * static_cast<size_t>(shape.head_dim);
    const size_t rows_before = static_cast<size_t>(shape.page_size + offset);
    return {.keys = (before + static_cast<size_t>(offset % block)) * element,
            .key_stride = block,
            .values = rows_before * static_cast<size_t>(shape.head_dim) * element};
}

}  // namespace sojourn
