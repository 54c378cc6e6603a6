#include "tests/reference/gpt.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "tests/reference/gpt_math.h"
#include "tests/reference/matrix.h"

namespace megalith::reference {

namespace {

template <class Arithmetic>
class Gpt {
  using Number = typename Arithmetic::Number;
  using Vector = std::vector<Number>;

 public:
  Gpt(const GptConfig& config, const GptTensors& weights, const GptBatch& batch)
      : c_(config),
        batch_(batch),
        rows_(batch.sequences * batch.length),
        math_({.sequences = batch.sequences,
               .length = batch.length,
               .heads = config.heads,
               .groups = config.groups,
               .dim = config.head_dim,
               .rotary_dim = config.rotary_dim,
               .rotary_base = config.rotary_base,
               .rope_scaling = config.rope_scaling}) {
    for (const auto& [name, values] : weights) {
      weights_[name] = Vector(values.begin(), values.end());
      gradients_[name] = Vector(values.size(), Number(0));
    }
    q_width_ = c_.heads * c_.head_dim;
    kv_width_ = c_.groups * c_.head_dim;
  }

  GptResult run() {
    std::vector<Layer> layers(c_.layers);
    Vector residual = embed();
    for (std::size_t l = 0; l < c_.layers; ++l) residual = forward(l, layers[l], residual);
    NormState final_state;
    const Vector normed = norm("decoder.final_layernorm", residual, c_.hidden, final_state);
    const std::string head = has("output_layer.weight") ? "output_layer.weight" : kWords;
    const Vector logits = product(normed, weight(head), c_.padded_vocab);
    const Vector d_logits = loss(logits);

    Vector d_normed = product_back(d_logits, weight(head), c_.hidden);
    add_outer(d_logits, normed, gradients_[head]);
    Vector d_residual = norm_back("decoder.final_layernorm", final_state, c_.hidden, d_normed, {});
    for (std::size_t l = c_.layers; l-- > 0;) d_residual = backward(l, layers[l], d_residual);
    embed_back(d_residual);
    for (const auto& [name, values] : gradients_) result_.gradients[name].assign(values.begin(), values.end());
    return std::move(result_);
  }

 private:
  static inline const std::string kWords = "embedding.word_embeddings.weight";
  static inline const std::string kPositions = "embedding.position_embeddings.weight";

  struct NormState {
    Vector x, mean, rstd;
  };
  struct Layer {
    NormState norm1, norm2, q_norm, k_norm;
    Vector normed1, normed2, pre, activated;
    Heads<Number> heads;
    Attended<Number> attended;
  };

  static Number stored(Number x) { return Arithmetic::stored(x); }
  bool has(const std::string& name) const { return weights_.contains(name); }
  const Vector& weight(const std::string& name) const {
    const auto it = weights_.find(name);
    if (it == weights_.end()) throw std::runtime_error("reference GPT: no tensor " + name);
    return it->second;
  }

  // ---- matrix products

  // c += a b, one term after the other, as kFp32 promises.
  template <class C, class A, class B>
  static void add_product(C&& c, const A& a, const B& b) {
    for (Eigen::Index k = 0; k < a.cols(); ++k) c += a.col(k) * b.row(k);
  }

  // y[t, o] = sum_i x[t, i] w[o, i] (+ bias[o])
  Vector product(const Vector& x, const Vector& w, std::size_t outputs, const Vector* bias = nullptr) const {
    const std::size_t inputs = w.size() / outputs;
    Vector y(x.size() / inputs * outputs, Number(0));
    add_product(as_matrix(y, outputs), as_matrix(x, inputs), as_matrix(w, inputs).transpose());
    if (bias != nullptr) as_matrix(y, outputs).rowwise() += as_matrix(*bias, outputs).row(0);
    store(y);
    return y;
  }

  // dx[t, i] = sum_o dy[t, o] w[o, i], not stored yet
  Vector product_back_sum(const Vector& dy, const Vector& w, std::size_t inputs) const {
    const std::size_t outputs = w.size() / inputs;
    Vector dx(dy.size() / outputs * inputs, Number(0));
    add_product(as_matrix(dx, inputs), as_matrix(dy, outputs), as_matrix(w, inputs));
    return dx;
  }

  static void store(Vector& x) {
    for (Number& value : x) value = stored(value);
  }

  Vector product_back(const Vector& dy, const Vector& w, std::size_t inputs) const {
    Vector dx = product_back_sum(dy, w, inputs);
    store(dx);
    return dx;
  }

  // dw[o, i] += sum_t dy[t, o] x[t, i]
  void add_outer(const Vector& dy, const Vector& x, Vector& dw) const {
    const std::size_t outputs = dy.size() / rows_, inputs = x.size() / rows_;
    Vector sum(dw.size(), Number(0));
    add_product(as_matrix(sum, inputs), as_matrix(dy, outputs).transpose(), as_matrix(x, inputs));
    as_matrix(dw, inputs) += as_matrix(sum, inputs);
  }

  Vector linear(const std::string& name, const Vector& x, std::size_t outputs) const {
    return product(x, weight(name + ".weight"), outputs, has(name + ".bias") ? &weight(name + ".bias") : nullptr);
  }

  void linear_weight_back(const std::string& name, const Vector& x, const Vector& dy) {
    add_outer(dy, x, gradients_[name + ".weight"]);
    if (!has(name + ".bias")) return;
    Vector& db = gradients_[name + ".bias"];
    for (std::size_t i = 0; i < dy.size(); ++i) db[i % db.size()] += dy[i];
  }

  // Linears that read the same input, as q, k and v or gate and up do: the sum of their gradients is stored once.
  struct Use {
    std::string name;
    const Vector& dy;
  };
  Vector linears_back(const std::vector<Use>& uses, const Vector& x) {
    const std::size_t inputs = x.size() / rows_;
    Vector dx(x.size(), Number(0));
    for (const Use& use : uses) {
      const Vector part = product_back_sum(use.dy, weight(use.name + ".weight"), inputs);
      for (std::size_t i = 0; i < dx.size(); ++i) dx[i] += part[i];
      linear_weight_back(use.name, x, use.dy);
    }
    store(dx);
    return dx;
  }

  // ---- norms over the last `width` elements

  Vector norm_factors(const std::string& name) const {
    Vector w = weight(name + ".weight");
    for (Number& value : w) value += c_.zero_centered ? Number(1) : Number(0);
    return w;
  }

  Vector norm(const std::string& name, const Vector& x, std::size_t width, NormState& state) const {
    const Vector w = norm_factors(name);
    state.x = x;
    Vector y(x.size());
    for (std::size_t first = 0; first < x.size(); first += width) {
      Number mean = 0, variance = 0;
      for (std::size_t j = 0; !c_.rms_norm && j < width; ++j) mean += x[first + j];
      mean /= static_cast<Number>(width);
      for (std::size_t j = 0; j < width; ++j) variance += (x[first + j] - mean) * (x[first + j] - mean);
      variance /= static_cast<Number>(width);
      const Number rstd = 1 / std::sqrt(variance + static_cast<Number>(c_.epsilon));
      for (std::size_t j = 0; j < width; ++j) {
        const Number bias = c_.rms_norm ? Number(0) : weight(name + ".bias")[j];
        y[first + j] = stored(w[j] * ((x[first + j] - mean) * rstd) + bias);
      }
      state.mean.push_back(mean);
      state.rstd.push_back(rstd);
    }
    return y;
  }

  // `d_other` is the gradient that reached x on another path; empty: none.
  Vector norm_back(const std::string& name, const NormState& state, std::size_t width, const Vector& dy,
                   const Vector& d_other) {
    const Vector w = norm_factors(name);
    Vector& dw = gradients_[name + ".weight"];
    Vector dx(dy.size());
    for (std::size_t row = 0; row < state.rstd.size(); ++row) {
      const Number mean = state.mean[row], rstd = state.rstd[row];
      const auto normalised = [&](std::size_t j) { return (state.x[row * width + j] - mean) * rstd; };
      Number sum_g = 0, sum_gh = 0;
      for (std::size_t j = 0; j < width; ++j) {
        const Number g = dy[row * width + j] * w[j];
        sum_g += g;
        sum_gh += g * normalised(j);
        dw[j] += dy[row * width + j] * normalised(j);
        if (!c_.rms_norm) gradients_[name + ".bias"][j] += dy[row * width + j];
      }
      const Number mean_g = c_.rms_norm ? Number(0) : sum_g / static_cast<Number>(width);
      const Number mean_gh = sum_gh / static_cast<Number>(width);
      for (std::size_t j = 0; j < width; ++j) {
        const std::size_t i = row * width + j;
        const Number d = rstd * (dy[i] * w[j] - mean_g - normalised(j) * mean_gh);
        dx[i] = stored(d_other.empty() ? d : d + d_other[i]);
      }
    }
    return dx;
  }

  // ---- embedding, dropout, loss

  Vector embed() {
    const Vector& words = weight(kWords);
    Vector x(rows_ * c_.hidden);
    for (std::size_t t = 0; t < rows_; ++t) {
      for (std::size_t j = 0; j < c_.hidden; ++j) {
        Number value = words[static_cast<std::size_t>(batch_.tokens[t]) * c_.hidden + j];
        if (has(kPositions)) value += weight(kPositions)[t % batch_.length * c_.hidden + j];
        x[t * c_.hidden + j] = stored(value);
      }
    }
    return dropped(0, x);
  }

  void embed_back(const Vector& d_out) {
    const Vector d = dropped(0, d_out);
    for (std::size_t t = 0; t < rows_; ++t) {
      for (std::size_t j = 0; j < c_.hidden; ++j) {
        gradients_[kWords][static_cast<std::size_t>(batch_.tokens[t]) * c_.hidden + j] += d[t * c_.hidden + j];
        if (has(kPositions)) gradients_[kPositions][t % batch_.length * c_.hidden + j] += d[t * c_.hidden + j];
      }
    }
  }

  Vector dropped(std::size_t site, Vector x) const {
    if (batch_.dropout.empty()) return x;
    const std::vector<double>& mask = batch_.dropout.at(site);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = stored(x[i] * static_cast<Number>(mask[i]));
    return x;
  }

  Vector loss(const Vector& logits) {
    Vector gradient(logits.size(), Number(0));
    for (std::size_t t = 0; t < rows_; ++t) {
      const Number* row = &logits[t * c_.padded_vocab];
      const Number largest = *std::max_element(row, row + c_.vocab);
      Number sum = 0;
      for (std::size_t v = 0; v < c_.vocab; ++v) sum += std::exp(row[v] - largest);
      const auto label = static_cast<std::size_t>(batch_.labels[t]);
      result_.losses.push_back(static_cast<double>(largest + std::log(sum) - row[label]));
      for (std::size_t v = 0; v < c_.vocab; ++v) {
        const Number p = std::exp(row[v] - largest) / sum;
        gradient[t * c_.padded_vocab + v] = stored(static_cast<Number>(batch_.loss_scale) * (v == label ? p - 1 : p));
        result_.logits.push_back(static_cast<double>(row[v]));
      }
    }
    return gradient;
  }

  bool exact() const { return c_.activation == GptActivation::kGeluExact; }
  bool gated() const { return c_.activation == GptActivation::kSwiglu; }

  // ---- a layer: the residual stream in, the next layer's residual stream out

  std::size_t window(std::size_t l) const { return c_.windows.empty() ? 0 : c_.windows.at(l); }
  static std::string prefix(std::size_t l) { return "decoder.layers." + std::to_string(l) + "."; }

  Vector add(const Vector& a, const Vector& b) const {
    Vector sum(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) sum[i] = stored(a[i] + b[i]);
    return sum;
  }

  Vector forward(std::size_t l, Layer& layer, const Vector& x) {
    const std::string self = prefix(l) + "self_attention.", mlp = prefix(l) + "mlp.";
    layer.normed1 = norm(prefix(l) + "input_layernorm", x, c_.hidden, layer.norm1);
    layer.heads.q = linear(self + "linear_q", layer.normed1, q_width_);
    layer.heads.k = linear(self + "linear_k", layer.normed1, kv_width_);
    layer.heads.v = linear(self + "linear_v", layer.normed1, kv_width_);
    if (has(self + "q_layernorm.weight")) {
      layer.heads.q = norm(self + "q_layernorm", layer.heads.q, c_.head_dim, layer.q_norm);
      layer.heads.k = norm(self + "k_layernorm", layer.heads.k, c_.head_dim, layer.k_norm);
    }
    math_.rotate(layer.heads.q, 1);
    math_.rotate(layer.heads.k, 1);
    layer.attended = math_.attend(layer.heads, window(l));
    const Vector middle = add(x, dropped(1 + 2 * l, linear(self + "linear_proj", layer.attended.out, c_.hidden)));

    layer.normed2 = norm(prefix(l) + "pre_mlp_layernorm", middle, c_.hidden, layer.norm2);
    if (gated()) {
      layer.pre = linear(mlp + "linear_gate", layer.normed2, c_.ffn);
      const Vector up = linear(mlp + "linear_up", layer.normed2, c_.ffn);
      layer.pre.insert(layer.pre.end(), up.begin(), up.end());  // [2, T, F]
    } else {
      layer.pre = linear(mlp + "linear_fc1", layer.normed2, c_.ffn);
    }
    layer.activated.resize(rows_ * c_.ffn);
    for (std::size_t i = 0; i < layer.activated.size(); ++i) {
      const Number z = layer.pre[i];
      layer.activated[i] = stored(gated() ? z * sigmoid(z) * layer.pre[i + layer.activated.size()] : ungated(z));
    }
    return add(middle, dropped(2 + 2 * l, linear(mlp + "linear_fc2", layer.activated, c_.hidden)));
  }

  Number ungated(Number z) const {
    if (c_.activation == GptActivation::kSquaredRelu) return z > 0 ? z * z : Number(0);
    return gelu(z, exact());
  }
  Number ungated_slope(Number z) const {
    if (c_.activation == GptActivation::kSquaredRelu) return z > 0 ? 2 * z : Number(0);
    return gelu_slope(z, exact());
  }

  Vector mlp_back(std::size_t l, const Layer& layer, const Vector& d_out) {
    const std::string mlp = prefix(l) + "mlp.";
    const Vector d_activated = linears_back({{mlp + "linear_fc2", d_out}}, layer.activated);
    const std::size_t count = d_activated.size();
    Vector d_first(count), d_up(gated() ? count : 0);
    for (std::size_t i = 0; i < count; ++i) {
      const Number z = layer.pre[i];
      if (!gated()) {
        d_first[i] = stored(d_activated[i] * ungated_slope(z));
        continue;
      }
      const Number s = sigmoid(z);
      d_first[i] = stored(d_activated[i] * layer.pre[i + count] * (s + z * s * (1 - s)));
      d_up[i] = stored(d_activated[i] * z * s);
    }
    if (!gated()) return linears_back({{mlp + "linear_fc1", d_first}}, layer.normed2);
    return linears_back({{mlp + "linear_gate", d_first}, {mlp + "linear_up", d_up}}, layer.normed2);
  }

  Vector attention_back(std::size_t l, const Layer& layer, const Vector& d_out) {
    const std::string self = prefix(l) + "self_attention.";
    const Vector d_attended = linears_back({{self + "linear_proj", d_out}}, layer.attended.out);
    Heads<Number> d = math_.attend_back(layer.heads, layer.attended, d_attended, window(l));
    math_.rotate(d.q, -1);
    math_.rotate(d.k, -1);
    if (has(self + "q_layernorm.weight")) {
      d.q = norm_back(self + "q_layernorm", layer.q_norm, c_.head_dim, d.q, {});
      d.k = norm_back(self + "k_layernorm", layer.k_norm, c_.head_dim, d.k, {});
    }
    return linears_back({{self + "linear_q", d.q}, {self + "linear_k", d.k}, {self + "linear_v", d.v}}, layer.normed1);
  }

  Vector backward(std::size_t l, const Layer& layer, const Vector& d_next) {
    const Vector d_middle = norm_back(prefix(l) + "pre_mlp_layernorm", layer.norm2, c_.hidden,
                                      mlp_back(l, layer, dropped(2 + 2 * l, d_next)), d_next);
    return norm_back(prefix(l) + "input_layernorm", layer.norm1, c_.hidden,
                     attention_back(l, layer, dropped(1 + 2 * l, d_middle)), d_middle);
  }

  const GptConfig& c_;
  const GptBatch& batch_;
  std::size_t rows_, q_width_ = 0, kv_width_ = 0;
  AttentionMath<Arithmetic> math_;
  std::map<std::string, Vector> weights_, gradients_;
  GptResult result_;
};

}  // namespace

GptResult run_gpt(GptArithmetic arithmetic, const GptConfig& config, const GptTensors& weights, const GptBatch& batch) {
  switch (arithmetic) {
    case GptArithmetic::kFp64: return Gpt<Fp64>(config, weights, batch).run();
    case GptArithmetic::kFp32: return Gpt<Fp32>(config, weights, batch).run();
    case GptArithmetic::kBf16Storage: return Gpt<Bf16Storage>(config, weights, batch).run();
  }
  throw std::logic_error("reference GPT: unknown arithmetic");
}

}  // namespace megalith::reference
