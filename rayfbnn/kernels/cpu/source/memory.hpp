// Memory that is aligned for packs and frees itself, with the sizes that keep working data in cache.
//
// Only the compiler's own operators and the C library are used here, because the instruction sets are compiled apart
// and the linker merges what they share: see trajectory.cpp.
#ifndef RAYFBNN_MEMORY_HPP
#define RAYFBNN_MEMORY_HPP

#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "trajectory.hpp"

namespace RAYFBNN_NAMESPACE {

constexpr size_t LARGE_PAGE = 2097152;

// Bytes behind the end of every buffer. With the sanitizers there are none, so that they see the first access behind
// the end.
#if defined(RAYFBNN_SANITIZE)
constexpr size_t SPARE_BYTES = 0;
#else
constexpr size_t SPARE_BYTES = 64;
#endif

// Shares of a second-level cache of 1 MB or more: for the values and derivatives of one block of cases (half as much is
// nearly as fast), and for one factor in a product of large matrices.
constexpr long BLOCK_BYTES = 393216, FACTOR_BYTES = 524288;

// Memory for n plain numbers or packs. The memory is not initialised.
//
// Rows of large arrays are about a page of 4 kB apart. Large buffers therefore ask the system for pages of 2 MB, which
// saves an address lookup for every row.
template <class T>
class Buffer {
   public:
    Buffer() = default;
    explicit Buffer(size_t n) {
        const size_t size = n * sizeof(T) + SPARE_BYTES;
        void* memory = nullptr;
        if (posix_memalign(&memory, size >= LARGE_PAGE ? LARGE_PAGE : 64, size) != 0) throw rayfbnn::OutOfMemory();
#if defined(MADV_HUGEPAGE)
        if (size >= LARGE_PAGE) madvise(memory, size, MADV_HUGEPAGE);  // if the system refuses, pages stay small
#endif
        items_ = static_cast<T*>(memory);
    }
    Buffer(Buffer&& other) : items_(other.items_) { other.items_ = nullptr; }
    Buffer& operator=(Buffer&& other) {
        T* items = other.items_;
        other.items_ = items_;
        items_ = items;
        return *this;
    }
    ~Buffer() { free(items_); }

    operator T*() const { return items_; }
    T* data() const { return items_; }

   private:
    T* items_ = nullptr;
};

// A fixed number of objects that may hold buffers themselves.
template <class T>
class Objects {
   public:
    explicit Objects(int n) : items_(new T[n]) {}
    Objects(const Objects&) = delete;
    Objects& operator=(const Objects&) = delete;
    ~Objects() { delete[] items_; }

    T& operator[](int k) const { return items_[k]; }

   private:
    T* items_;
};

// The one owner of an object made with `new`, or of none.
template <class T>
class Owner {
   public:
    explicit Owner(T* object) : object_(object) {}
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;
    ~Owner() { delete object_; }

    explicit operator bool() const { return object_ != nullptr; }
    T* operator->() const { return object_; }

   private:
    T* object_;
};

}  // namespace RAYFBNN_NAMESPACE
#endif
