// A string that remembers where each byte came from: the template (control) or the caller's data. Every string
// operation of the engine goes through Text, which is why message text can never turn into template text.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tensorfold::jinja {

/// What the render's heap owns. Objects are freed together when the render ends, so cycles and deep nesting are
/// harmless.
class Object {
 public:
  virtual ~Object() = default;
};

struct TextRun {
  std::size_t end;  // one past the run's last byte
  bool data;        // came from the caller
};

class Text final : public Object {
 public:
  Text() = default;
  Text(std::string_view bytes, bool data) { append(bytes, data); }

  const std::string& bytes() const { return bytes_; }
  const std::vector<TextRun>& runs() const { return runs_; }
  std::size_t size() const { return bytes_.size(); }
  bool data_at(std::size_t offset) const;
  bool any_data() const;

  void append(std::string_view bytes, bool data);
  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& other, std::size_t begin, std::size_t end);

  /// Marked `safe`, as markupsafe.Markup: adding another string escapes that one.
  bool markup = false;

 private:
  std::string bytes_;
  std::vector<TextRun> runs_;  // ascending, covering bytes_; neighbours differ
};

}  // namespace tensorfold::jinja
