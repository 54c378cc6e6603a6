# Judges run folders of --wandb-project by the wandb package: `wandb sync` uploads them to a server on this machine,
# and the uploads are compared with --metrics-jsonl.
#   check_wandb.py METRICS.jsonl EXIT_CODE ENTITY PROJECT NAME RUN_FOLDER
# EXIT_CODE is "none" for a run that was killed.
import gzip
import http.server
import json
import math
import os
import subprocess
import sys
import tempfile
import threading

runs, history, summary, exits = [], [], {}, []


class Server(http.server.BaseHTTPRequestHandler):
    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        reply = json.dumps(self.reply_to(json.loads(body) if body[:1] == b"{" else {})).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    do_GET = do_POST = do_PUT = answer

    def reply_to(self, body):
        if self.path.endswith("/file_stream"):
            files = body.get("files", {})
            for line in files.get("wandb-history.jsonl", {}).get("content", []):
                history.append(json.loads(line))
            for line in files.get("wandb-summary.json", {}).get("content", []):
                summary.update(json.loads(line))
            if "exitcode" in body:
                exits.append((body["exitcode"], body["complete"]))
            return {}
        query, variables = body.get("query", ""), body.get("variables", {})
        if "UpsertBucket" in query:
            runs.append(variables)
            project = {"id": "1", "name": variables["project"], "entity": {"id": "1", "name": variables["entity"]}}
            bucket = {"id": "1", "name": variables["name"], "displayName": "", "historyLineCount": 0, "project": project}
            return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
        if "CreateRunFiles" in query:
            url = "http://%s:%d/upload" % self.server.server_address
            files = [{"name": name, "uploadUrl": url} for name in variables["files"]]
            return {"data": {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}}
        return {"data": {}}

    def log_message(self, *_):
        pass


def main(metrics, exit_code, entity, project, name, folder):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as home:
        environment = dict(os.environ, WANDB_BASE_URL="http://%s:%d" % server.server_address, WANDB_API_KEY="a" * 40,
                           HOME=home, WANDB_ERROR_REPORTING="false")
        sync = [sys.executable, "-m", "wandb", "sync", "--yes", folder]
        done = subprocess.run(sync, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr

    run = runs[0]
    assert (run["entity"], run["project"], run["displayName"], run["groupName"]) == (entity, project, name, name), run
    assert folder.rstrip("/").endswith("-" + run["name"]), run
    lines = [json.loads(line) for line in open(metrics)]
    if exit_code == "none":  # may be killed between the two files
        assert len(lines) - 1 <= len(history) <= len(lines), (len(lines), len(history))
        lines = lines[: len(history)]
    config = {key: item["value"] for key, item in json.loads(run["config"]).items() if key != "_wandb"}
    for key, value in lines[0]["run"]["config"].items():
        assert config[key] == value, (key, value, config.get(key))

    assert [step["_step"] for step in history] == [line["iteration"] for line in lines], history
    values = 0
    for line, step in zip(lines, history):
        for key, value in line.items():
            if key == "run" or key.endswith("_hex"):
                continue
            if key == "experts":
                for at_layer, layer in enumerate(value["layer"]):
                    for name, each in value.items():
                        if name != "layer":  # JSON lines have six digits
                            got = step["experts"]["layer_%d" % layer][name]
                            assert math.isclose(got, each[at_layer], rel_tol=1e-5, abs_tol=1e-9), (name, got)
                        values += 1
            elif key == "memory_bytes":
                assert step[key] == value, (step[key], value)
                values += len(value)
            elif key != "offload":
                assert step[key] == value or (value is None and math.isnan(float(step[key]))), (key, value, step[key])
                values += 1
    assert summary["iteration"] == lines[-1]["iteration"] and summary["lm_loss"] == lines[-1]["lm_loss"], summary
    assert exits and exits[-1][1], exits
    if exit_code != "none":
        assert exits[-1][0] == int(exit_code), exits
    print("%d steps, %d values, exit code %s" % (len(history), values, exits[-1][0]))


main(*sys.argv[1:])
