// KV memory of one pool: which bytes a page is. Owns no decision about pages.
//
//   [layer of the pool][page][kv head]{ K | V }
//   K  for P >= 16: [P / 16][head_dim][16], positions innermost, so that 16 scores are one vector; for P < 16: [head_dim][P]
//   V  [P][head_dim]
//
// Page 0 is the null page: nothing is written to it, it stays zero.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "native/kv/memory.h"

namespace sojourn {

enum class KvType : uint8_t { F16, F32 };

inline constexpr int kBlock = 16;  // positions per block of K, at fixed absolute positions

constexpr size_t bytes_of(KvType type) { return type == KvType::F16 ? 2 : 4; }

struct KvShape {
    int layers = 0;
    int pages = 0;
    int kv_heads = 0;
    int head_dim = 0;
    int page_size = 0;
    KvType type = KvType::F16;

    size_t head_elements() const { return static_cast<size_t>(2) * page_size * head_dim; }
    size_t page_bytes_per_layer() const { return head_elements() * kv_heads * bytes_of(type); }
    size_t page_bytes() const { return page_bytes_per_layer() * layers; }
};

class KvStore {
public:
    explicit KvStore(const KvShape& shape)
        : shape_(shape), memory_(shape.page_bytes_per_layer() * shape.pages * shape.layers) {}

    const KvShape& shape() const { return shape_; }

    // K of one head in one page; its V follows after page_size * head_dim elements.
    std::byte* head(int layer, int page, int kv_head) const {
        const size_t pages_before = static_cast<size_t>(layer) * shape_.pages + page;
        const size_t heads_before = pages_before * shape_.kv_heads + kv_head;
        return memory_.data() + heads_before * shape_.head_elements() * bytes_of(shape_.type);
    }

    // A page outside the pool, as page_bytes() bytes: its layers one after another. For pages that no running step writes
    // (copy_out) or has in its tables (copy_in): these do not wait for one.
    void copy_out(int page, std::byte* target) const {
        const size_t bytes = shape_.page_bytes_per_layer();
        for (int layer = 0; layer < shape_.layers; layer++) std::memcpy(target + layer * bytes, head(layer, page, 0), bytes);
    }
    void copy_in(int page, const std::byte* source) const {
        const size_t bytes = shape_.page_bytes_per_layer();
        for (int layer = 0; layer < shape_.layers; layer++) std::memcpy(head(layer, page, 0), source + layer * bytes, bytes);
    }

private:
    KvShape shape_;
    LazyMemory memory_;
};

}  // namespace sojourn
