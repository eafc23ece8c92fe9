// Zeroed memory that costs nothing until it is touched.
#pragma once
#include <cstddef>

namespace sojourn {

class LazyMemory {
public:
    // Reserves address space; throws std::bad_alloc if even that is refused.
    explicit LazyMemory(size_t bytes);
    ~LazyMemory();
    LazyMemory(LazyMemory&& other) noexcept;
    LazyMemory& operator=(LazyMemory&&) = delete;

    std::byte* data() const { return data_; }
    size_t size() const { return bytes_; }

private:
    std::byte* data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace sojourn
