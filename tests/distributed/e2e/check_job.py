# Checks configs/kubernetes/train.yaml and prints the flags of its train, one a line.
#   check_job.py FILE
import sys

import yaml

(job,) = yaml.safe_load_all(open(sys.argv[1]))
assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
pod = job["spec"]["template"]["spec"]
(container,) = pod["containers"]
assert pod["restartPolicy"] == "Never"
assert all(isinstance(word, str) for word in container["command"])
assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
rules = [rule for rule in job["spec"]["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
assert all(rule["onExitCodes"]["containerName"] == container["name"] for rule in rules)
assert not {75, 7} & set(rules[0]["onExitCodes"]["values"])
gpus = container["resources"]["limits"]["nvidia.com/gpu"]
assert container["command"][:4] == ["apps/launch.sh", "-np", str(gpus), "train"], container["command"]
print("\n".join(container["command"][4:]))
