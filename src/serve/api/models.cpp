// GET /v1/models and /v1/models/ID (api.md 3.9).
#include <algorithm>

#include "serve/api/json_body.h"
#include "serve/api_error.h"
#include "serve/handlers.h"

namespace tensorfold {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kShownIdBytes = 255;

Json reasoning_block(const ServedModel& model) {
  Json block = {{"default_enabled", model.thinking_default}};
  if (model.effort_default) block["default_effort"] = *model.effort_default;
  if (!model.prompts->facts().effort_levels.empty()) {
    Json levels = model.prompts->facts().effort_levels;
    levels.push_back("none");
    block["supported_efforts"] = std::move(levels);
  }
  return block;
}

Json model_entry(const ServedModel& model, const std::string& name) {
  Json entry = {{"id", name},
                {"object", "model"},
                {"created", model.created_unix_seconds},
                {"owned_by", "tensorfold"},
                {"context_length", model.engine->facts().context},
                {"max_model_len", model.engine->facts().context}};
  if (model.prompts && model.prompts->facts().has_thinking_switch) entry["reasoning"] = reasoning_block(model);
  return entry;
}

}  // namespace

HttpResponse handle_model(const ServedModel& model, const std::string& id) {
  if (std::find(model.names.begin(), model.names.end(), id) == model.names.end()) {
    throw ApiError(
        404, "invalid_request_error",
        fmt::format("the model '{}' isn't served here; GET /v1/models lists what is", id.substr(0, kShownIdBytes)))
        .with_param("model")
        .with_code("model_not_found");
  }
  HttpResponse response;
  response.body = dump_json(model_entry(model, id));
  return response;
}

HttpResponse handle_models(const ServedModel& model) {
  Json data = Json::array();
  for (const std::string& name : model.names) data.push_back(model_entry(model, name));
  HttpResponse response;
  response.body = dump_json({{"object", "list"}, {"data", std::move(data)}});
  return response;
}

}  // namespace tensorfold
