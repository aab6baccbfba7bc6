#include "records.h"

namespace fakecuda {

void Records::add(CopyRecord record) {
  record.number = copies_made++;
  bytes[{record.source_device, record.target_device}] += record.nbytes;
  copies.push_back(record);
  if (copies.size() > kMost) copies.pop_front();
}

void Records::add_blocking(const std::string& name, const Place& place) {
  ++blocking[name];
  blocking_calls.push_back({name, place});
  if (blocking_calls.size() > kMost) blocking_calls.pop_front();
}

}  // namespace fakecuda
