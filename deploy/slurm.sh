#!/usr/bin/env bash
#SBATCH --job-name=pappus
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#
# A run on the nodes of a Slurm job: sbatch deploy/slurm.sh RUN_DIR SYSTEM [options of pappus train]
#
#     sbatch --nodes=4 deploy/slurm.sh runs/pong impala --env ALE/Pong-v5 --actors auto
#
# Ray is started on all nodes, and ends with the job. RUN_DIR is on a disk that all nodes see. Two minutes before the time
# is up Slurm sends SIGUSR1: the run is saved and ends, and the job queues again and continues it.
set -euo pipefail

run_dir=$1
shift
port=${PAPPUS_RAY_PORT:-6379}
saved=130 # the exit code of a run that a signal ended
run=''
told=''

# a signal is for the run, which saves; before there is one, it ends the job. Only when time is up the job queues again:
# scancel sends SIGTERM, and what Slurm preempts it requeues by itself
trap 'told=USR1; [ -z "$run" ] || kill -USR1 "$run"' USR1
trap 'told=TERM; [ -z "$run" ] || kill -TERM "$run"' TERM

# who has no token of this job has no place in its cluster
RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(od --address-radix=n --format=x8 --read-bytes=32 /dev/urandom | tr --delete ' \n')
export RAY_AUTH_MODE RAY_AUTH_TOKEN

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --all-ip-addresses | cut -d ' ' -f 1)

srun --nodes=1 --ntasks=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --nodelist="$head" \
    ray start --head --node-ip-address "$address" --port "$port" --num-cpus "$SLURM_CPUS_PER_TASK" --block &
services=($!)
until [ -n "$told" ] || ray health-check --address "$address:$port" >/dev/null 2>&1; do
    kill -0 "${services[0]}" 2>/dev/null || { echo "Ray does not start on $head" >&2; exit 1; }
    sleep 1
done
for node in "${nodes[@]:1}"; do
    srun --nodes=1 --ntasks=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --nodelist="$node" \
        ray start --address "$address:$port" --num-cpus "$SLURM_CPUS_PER_TASK" --block &
    services+=($!)
done

code=$saved
if [ -z "$told" ]; then
    pappus train "$@" --runtime ray --address "$address:$port" --cluster.patience 120 \
        --run-dir "$run_dir" --resume-or-start &
    run=$!
    while kill -0 "$run" 2>/dev/null; do # a signal interrupts `wait`, and the run goes on saving
        code=0
        wait "$run" || code=$?
    done
fi

kill "${services[@]}" 2>/dev/null || true
if [ "$code" -eq "$saved" ] && [ "$told" = USR1 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
