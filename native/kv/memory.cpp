#include "native/kv/memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace sojourn {

LazyMemory::LazyMemory(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(address);
    // Long contexts read KV from all over the pool: with 4 KiB pages a tenth of an 8,000-token step went to address
    // translation. Advice only: where the system gives no huge pages, nothing else changes.
    madvise(address, bytes, MADV_HUGEPAGE);
}

LazyMemory::~LazyMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
}

LazyMemory::LazyMemory(LazyMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

}  // namespace sojourn
