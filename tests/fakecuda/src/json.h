// Just enough JSON to hand records to Python.
#pragma once

#include <cstdio>
#include <map>
#include <string>

namespace fakecuda {

inline std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      snprintf(code, sizeof code, "\\u%04x", c);
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

// Joins the members of an object or the items of a list.
class Joined {
 public:
  explicit Joined(const char* brackets) : close_(brackets[1]), text_(1, brackets[0]) {}

  Joined& item(const std::string& value) {
    if (text_.size() > 1) text_ += ", ";
    text_ += value;
    return *this;
  }
  Joined& member(const std::string& name, const std::string& value) { return item(quoted(name) + ": " + value); }
  Joined& member(const std::string& name, long value) { return member(name, std::to_string(value)); }

  std::string text() const { return text_ + close_; }

 private:
  char close_;
  std::string text_;
};

inline std::string object(const std::map<std::string, long>& counts) {
  Joined joined("{}");
  for (const auto& [name, count] : counts) joined.member(name, count);
  return joined.text();
}

}  // namespace fakecuda
