"""A trained policy as one file for other programs: ONNX or torch.export.

    observation, first, reward, state ──▶ to what the network sees ──▶ network ──▶ greedy action in the env's units,
                                                                                   scores, next state
"""
