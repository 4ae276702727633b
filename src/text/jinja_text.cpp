// Text: bytes with runs of provenance.
#include "text/jinja_text.h"

#include <algorithm>

namespace tensorfold::jinja {

bool Text::data_at(std::size_t offset) const {
  const auto run = std::upper_bound(runs_.begin(), runs_.end(), offset,
                                    [](std::size_t value, const TextRun& item) { return value < item.end; });
  return run != runs_.end() && run->data;
}

bool Text::any_data() const {
  return std::any_of(runs_.begin(), runs_.end(), [](const TextRun& run) { return run.data; });
}

void Text::append(std::string_view bytes, bool data) {
  if (bytes.empty()) return;
  bytes_.append(bytes);
  if (!runs_.empty() && runs_.back().data == data) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), data});
  }
}

void Text::append(const Text& other, std::size_t begin, std::size_t end) {
  auto run = std::upper_bound(other.runs_.begin(), other.runs_.end(), begin,
                              [](std::size_t value, const TextRun& item) { return value < item.end; });
  for (; begin < end && run != other.runs_.end(); ++run) {
    const std::size_t stop = std::min(end, run->end);
    append(std::string_view(other.bytes_).substr(begin, stop - begin), run->data);
    begin = stop;
  }
}

}  // namespace tensorfold::jinja
