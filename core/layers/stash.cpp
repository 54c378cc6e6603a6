#include "core/layers/stash.h"

#include <string>

namespace megalith {

Stash& Stash::operator=(const Stash& other) {
  if (this == &other) return *this;
  policies_ = other.policies_;
  slots_ = other.slots_;
  children_.resize(other.children_.size());
  for (std::size_t i = 0; i < children_.size(); ++i) {
    if (!other.children_[i]) {
      children_[i].reset();
    } else if (children_[i]) {
      *children_[i] = *other.children_[i];
    } else {
      children_[i] = std::make_unique<Stash>(*other.children_[i]);
    }
  }
  return *this;
}

Stash::Slot& Stash::slot(int index) {
  require(index >= 0 && index < static_cast<int>(kMaxSlots),
          "a stash has 8 slots: use children for the parts of a segment");
  return slots_[static_cast<std::size_t>(index)];
}

Tensor& Stash::operator[](int index) {
  Slot& s = slot(index);
  s.present = true;
  return s.tensor;
}

void Stash::save(int index, SlotKind kind, const Tensor& tensor) {
  Slot& s = slot(index);
  s.kind = kind;
  s.present = policies_[static_cast<std::size_t>(kind)] != StashPolicy::kRecompute;
  s.never_offload = false;
  if (s.present) s.tensor = tensor;
}

void Stash::keep(int index, SlotKind kind, const Tensor& tensor) {
  slot(index) = {.tensor = tensor, .kind = kind, .present = true};
}

void Stash::hand(int index, const Tensor& tensor) { slot(index) = {.tensor = tensor, .present = true, .handed = true}; }

Stash& Stash::layer() const {
  require(layer_ != nullptr, "a segment that shares a stash with its layer runs outside of one");
  return *layer_;
}

void Stash::never_offload(int index) { slot(index).never_offload = has(index); }

bool Stash::has(int index) const {
  const auto i = static_cast<std::size_t>(index);
  return i < slots_.size() && slots_[i].present;
}

const Tensor& Stash::at(int index, std::string_view name) const {
  if (!has(index)) {
    fail({.subject = "stash slot " + std::string(name),
          .expected = "a tensor kept by forward or refilled by backward_data",
          .got = "nothing",
          .remedy = "save it in forward, refill it in backward_data where its policy is to recompute it"});
  }
  return slots_[static_cast<std::size_t>(index)].tensor;
}

Stash& Stash::child(int index) {
  const auto i = static_cast<std::size_t>(index);
  if (children_.size() <= i) children_.resize(i + 1);
  if (!children_[i]) children_[i] = std::make_unique<Stash>(policies_);
  children_[i]->layer_ = layer_;
  return *children_[i];
}

int Stash::rebind(const void* begin, std::size_t bytes, void* to) {
  const auto moved = [&](const void* address) -> std::byte* {
    const auto at = reinterpret_cast<std::uintptr_t>(address), from = reinterpret_cast<std::uintptr_t>(begin);
    return at < from || at >= from + bytes ? nullptr : static_cast<std::byte*>(to) + (at - from);
  };
  int views = 0;
  for (Slot& s : slots_) {
    if (!s.present || s.handed) continue;
    if (std::byte* const bound = moved(s.tensor.bound)) s.tensor.bound = reinterpret_cast<std::int32_t*>(bound);
    std::byte* const data = moved(s.tensor.data);
    if (data == nullptr) continue;
    s.tensor.data = data;
    ++views;
  }
  for (auto& part : children_) views += part ? part->rebind(begin, bytes, to) : 0;
  return views;
}

void Stash::clear() {
  slots_.fill({});
  for (auto& part : children_) {
    if (part) part->clear();
  }
}

}  // namespace megalith
