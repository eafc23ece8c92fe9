// Memory that grows and is never cleared: contents are undefined after `ensure`.
#pragma once
#include <cstddef>
#include <memory>
#include <new>

namespace sojourn {

template <class T>
class Buffer {
public:
    // Room for at least `size` elements, aligned to a cache line; what was there may be lost.
    void ensure(size_t size) {
        if (size <= size_) return;
        memory_.reset();
        memory_.reset(static_cast<T*>(::operator new(size * sizeof(T), std::align_val_t{64})));
        size_ = size;
    }
    T* data() const { return memory_.get(); }
    size_t size() const { return size_; }

private:
    struct Free {
        void operator()(T* memory) const { ::operator delete(memory, std::align_val_t{64}); }
    };
    std::unique_ptr<T, Free> memory_;
    size_t size_ = 0;
};

}  // namespace sojourn
