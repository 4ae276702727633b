// Code points of UTF-8 strings and Python's view of them (case, whitespace, printable), for the template engine alone:
// it must agree with str.upper() and repr() rather than with the newest Unicode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tensorfold::jinja {

/// Bytes of the code point that starts at `offset`; an invalid byte counts as a code point of its own.
std::size_t code_point_length(std::string_view text, std::size_t offset);
std::uint32_t code_point_at(std::string_view text, std::size_t offset);
void append_code_point(std::string& text, std::uint32_t code);
std::size_t count_code_points(std::string_view text);
/// Byte offset of code point `index`; the text's size when it has no more.
std::size_t offset_of_code_point(std::string_view text, std::size_t index);
bool is_valid_utf8(std::string_view text);

bool is_space(std::uint32_t code);
bool is_printable(std::uint32_t code);
bool is_cased(std::uint32_t code);
bool is_alphanumeric(std::uint32_t code);
bool is_alphabetic(std::uint32_t code);
bool is_decimal_ascii(std::uint32_t code);
void append_upper(std::string& text, std::uint32_t code);
void append_lower(std::string& text, std::uint32_t code);
void append_title(std::string& text, std::uint32_t code);

/// Byte range of `text` without Python's whitespace, or without the code points of `characters`, at either end.
struct ByteRange {
  std::size_t begin, end;
};
ByteRange stripped_range(std::string_view text, const std::string_view* characters, bool left, bool right);

}  // namespace tensorfold::jinja
