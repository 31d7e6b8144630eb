// The order of uniform numbers: a random permutation, in a time proportional to their number.
#ifndef RAYFBNN_ORDERING_HPP
#define RAYFBNN_ORDERING_HPP

#include <algorithm>
#include <cstdint>
#include <vector>

namespace rayfbnn {

// Sorts n numbers between 0 and 1, with memory that is kept from one call to the next. Number u goes to bucket
// floor(u n), and the few numbers of a bucket are sorted by insertion. Equal numbers keep their order.
class Ordering {
   public:
    explicit Ordering(size_t n) : n_(n), begins_(n + 1), ends_(n) {}

    void write(const double* values, int64_t* order) {
        std::fill(begins_.begin(), begins_.end(), 0);
        for (size_t k = 0; k < n_; ++k) ++begins_[bucket(values[k]) + 1];
        for (size_t b = 0; b < n_; ++b) begins_[b + 1] += begins_[b], ends_[b] = begins_[b];
        for (size_t k = 0; k < n_; ++k) {
            const size_t b = bucket(values[k]);
            size_t place = ends_[b]++;
            for (; place > begins_[b] && values[order[place - 1]] > values[k]; --place) order[place] = order[place - 1];
            order[place] = int64_t(k);
        }
    }

   private:
    size_t bucket(double value) const { return size_t(std::min(int64_t(value * double(n_)), int64_t(n_) - 1)); }

    size_t n_;
    std::vector<size_t> begins_, ends_;  // of the buckets; the ends of what is in them so far
};

}  // namespace rayfbnn
#endif
